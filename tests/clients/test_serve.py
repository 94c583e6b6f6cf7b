"""`siafu serve` as OpenAI's own SDK finds it, sync and async, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cli.front import siafu
from service.test_serve import PROVIDER_KEY, serving
from siafu.bench.gateway.peers import OPENAI, environment
from sim import running_sim

from .asking import HERE, ROOT

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]  # with the time to fetch it


def test_openais_sdk_gets_what_it_expects(tmp_path: Path) -> None:
    python = environment(ROOT / ".clients-openai", [OPENAI])
    if isinstance(python, str):
        pytest.skip(python)
    made = siafu(tmp_path, "keys", "create", "--name", "sdk", "--customer", "kim", "--json")
    key = json.loads(made.stdout)["key"]
    env = {"OPENAI_API_KEY": PROVIDER_KEY, "SIAFU_MODEL": "gpt-4.1-mini"}
    with running_sim() as sim, serving(tmp_path, OPENAI_BASE_URL=sim.url, **env) as process:
        words = [str(python), str(HERE / "ask_openai.py"), process.ready["url"], key]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert "siafu/support" in found["models"]
    assert "안녕하세요" in found["plain"]
    assert found["streamed"] == found["plain"]
    assert found["usage"] and found["streamed_usage"]
    assert [json.loads(each) for each in (*found["tools"], *found["streamed_tools"])] == [{"order_id": "1001"}] * 2
    assert isinstance(found["schema"]["a"], int)
    assert "1001" in found["support"]
    assert found["at_once"] == 30
    assert found["no_swarm"] == {"kind": "NotFoundError", "code": "model_not_found", "request_id": True}
    assert found["no_messages"]["kind"] == "BadRequestError"
    assert found["wrong_key"] == {"kind": "AuthenticationError", "code": "invalid_api_key", "request_id": True}


def test_openais_sdk_stores_files_and_has_batches_run(tmp_path: Path) -> None:
    python = environment(ROOT / ".clients-openai", [OPENAI])
    if isinstance(python, str):
        pytest.skip(python)
    keys = [
        json.loads(siafu(tmp_path, "keys", "create", "--name", name, "--json").stdout)["key"] for name in ("one", "two")
    ]
    with (
        running_sim(latency="fixed:20ms") as sim,
        serving(tmp_path, OPENAI_BASE_URL=sim.url, OPENAI_API_KEY=PROVIDER_KEY) as process,
    ):
        words = [str(python), str(HERE / "ask_openai_batches.py"), process.ready["url"], *keys]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["file"] == ["file", "batch", "processed", "질문.jsonl", 86_400]
    assert found["same"] and found["content"] and found["batches"] and found["outputs"] and found["deleted"]
    assert found["made"] == ["batch", "/v1/chat/completions", "24h", {"이름": "밤"}, None]
    assert found["ended"] == ["completed", {"completed": 30, "failed": 0, "total": 30}, None]
    assert found["ids"] == sorted(f"질문-{number}" for number in range(30))
    assert all("안녕하세요" in answer for answer in found["answers"])
    assert found["bad"] == ["failed", [["invalid_json_line", 2], ["duplicate_custom_id", 3]]]
    assert found["cancelling"] in ("cancelling", "cancelled") and found["cancelled"] == ["cancelled", True]
    assert found["again"] == {"kind": "ConflictError", "code": "batch_ended"}
    missing = {"kind": "NotFoundError", "code": "not_found"}
    assert found["others"] == [missing] * 3 and found["gone"] == missing
    assert found["purpose"] == {"kind": "BadRequestError", "code": "invalid_value"}
    assert found["async"] == "하나"
