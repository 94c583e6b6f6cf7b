"""`siafu batch run` while the account has no credit: it pauses, says so, and goes on by itself."""

from __future__ import annotations

import json
from pathlib import Path

from sim import running_sim

from .front import siafu

LINES = 60
SETTINGS = """
[endpoint]
base_url = "{url}"
[models]
default = "m"
[limits]
concurrency = 5
[patience]
quota_probe_seconds = 0.2
"""


def test_f04_used_up_credit_pauses_the_run_until_there_is_some_again(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "환불해 주세요"}]}
    lines = [json.dumps({"custom_id": f"q{n}", "body": body}) for n in range(LINES)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with running_sim() as sim:
        (tmp_path / "siafu.toml").write_text(SETTINGS.format(url=sim.url), encoding="utf-8")
        sim.set_faults({"kind": "quota", "times": 8})
        run = siafu(tmp_path, "batch", "run", "in.jsonl", "--out", "out.jsonl", "--json")
        stats = sim.stats()
    assert run.returncode == 0, run.stderr
    assert "default: no credit or quota left; it is asked again now and then" in run.stderr
    assert "default answers again" in run.stderr
    assert json.loads(run.stdout)["finished"] == LINES
    assert stats["requests"] == LINES + 8, "nothing was asked twice but what was refused"
