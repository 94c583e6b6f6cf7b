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
