"""Serves a model file: llama.cpp's own OpenAI-compatible server inside a process of its own, on loopback.

This is the door of xllamacpp, an optional extra: `pip install 'siafu[local]'`.

llama.cpp reads tool calls in the notation that the chat template shows, so a template that shows another one than the
model was trained to write gives answers without tool calls. `fenced.jinja` shows the notation of models that write
calls as a fenced JSON block, such as Qwen2.5-Coder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

SLOTS, SLOT_TOKENS = 4, 4096  # answers at once if nothing is said, and the longest conversation of each
FENCED = Path(__file__).with_name("fenced.jinja")
ALIAS = "local"


def main() -> None:
    """Serve until SIGTERM, SIGINT or the end of the parent process; the ready file gets the base URL."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--chat-template", type=Path)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--parent-pid", type=int, required=True)
    given = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # before the engine starts its threads
    server = _serve(
        given.model, given.chat_template, given.port, given.slots
    )  # it serves for as long as it is referenced
    url = server.listening_address.rstrip("/")
    part = given.ready_file.with_name(given.ready_file.name + ".part")
    part.write_text(json.dumps({"url": f"{url}/v1", "model": ALIAS}), encoding="utf-8")
    part.replace(given.ready_file)
    while os.getppid() == given.parent_pid and signal.sigtimedwait({signal.SIGTERM, signal.SIGINT}, 0.5) is None:
        pass
    os._exit(0)  # the engine's own threads are still at work


def _serve(model: Path, template: Path | None, port: int, slots: int) -> Any:
    """A running server."""
    import xllamacpp  # noqa: PLC0415 (only this process needs it)

    threads = len(os.sched_getaffinity(0))
    options = xllamacpp.CommonParams()
    options.model.path = str(model)
    options.model_alias = {ALIAS}
    options.hostnames = ["127.0.0.1"]
    options.port = port
    options.n_parallel = slots
    options.n_ctx = slots * SLOT_TOKENS
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.use_jinja = True
    options.offline = True
    options.ui = False
    options.verbosity = 0
    if template is not None:
        options.chat_template = template.read_text(encoding="utf-8")
    return xllamacpp.Server(options)


if __name__ == "__main__":
    main()
