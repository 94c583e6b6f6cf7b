"""An MCP server over stdio, written by hand so that it can misbehave: `raw_stdio.py LOG [WISH ...]`.

Every start and every message received is a line of JSON in LOG. Its tools are named after what they do; the wishes
change what happens before any call.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LOG = Path(sys.argv[1])
ONCE = Path(sys.argv[1] + ".once")
WISHES = sys.argv[2:]
READS = {"readOnlyHint": True}
TOOLS: dict[str, dict[str, Any]] = {
    "echo": READS,
    "exit": {},
    "exit_reading": READS,
    "exit_once": READS,
    "kill": {},
    "never": {},
    "late": {},
    "error": {},
    "blocks": {},
    "surrogate": {},
    "empty": {},
    "environment": READS,
    "identity": {},
    "rpc_error": {},
    "closed_code": {},
    "malformed": {},
    "malformed_reading": READS,
    "null": {},
    "deep": {},
    "deep_first": {},
    "half": {},
    "no_json": {},
    "sampling": {},
    "changes": {},
    "long": {},
    "arguments": READS,
    "grandchild": {},
    "chatter": {},
    "deafens": {},
    "orphan": {},
}
UNREADABLE = {
    "null": '{"jsonrpc":"2.0","result":null,"id":ID}',
    "deep": '{"jsonrpc": "2.0", "id": ID, "result": {"structuredContent": DEEP}}',
    "deep_first": '{"result":{"structuredContent":DEEP},"jsonrpc":"2.0","id":ID}',
    "half": '{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"te',
    "no_json": "완료",
}
BLOCKS = [
    {"type": "text", "text": "downloaded"},
    {"type": "resource", "resource": {"uri": "file:///가.txt", "mimeType": "text/plain", "text": "BODY"}},
    {"type": "resource", "resource": {"uri": "file:///b.pdf", "mimeType": "application/pdf", "blob": "QUJD" * 1000}},
    {"type": "image", "data": "QUJD" * 1000, "mimeType": "image/png"},
    {"type": "audio", "data": "QUJD", "mimeType": "audio/wav"},
    {"type": "resource_link", "name": "log", "uri": "file:///log", "size": 12},
    {"type": "hologram", "data": "QUJD" * 1000},
]


def note(**what: Any) -> None:
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps(what) + "\n")


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(request: dict[str, Any], words: str, **more: Any) -> None:
    send({"id": request["id"], "result": {"content": [{"type": "text", "text": words}], **more}})


def tools(cursor: str | None) -> dict[str, Any]:
    if "pages" in WISHES:
        start = {None: 0, "p2": 50, "p3": 100}[cursor]
        names = [f"tool{i}" for i in range(start, min(start + 50, 101))]
        more = {0: "p2", 50: "p3"}.get(start)
        found = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        return {"tools": found, **({"nextCursor": more} if more else {})}
    if "endless" in WISHES:
        return {"tools": [], "nextCursor": "again"}
    names = [*TOOLS, "with.dots/slash", *(["added"] if "changed" in WISHES else [])]
    return {
        "tools": [{"name": n, "inputSchema": {"type": "object"}, "annotations": TOOLS.get(n, {})} for n in names],
    }


def call(request: dict[str, Any]) -> None:
    name, arguments = request["params"]["name"], request["params"].get("arguments") or {}
    if name in ("never", "deafens"):
        time.sleep(300 if name == "deafens" else 0)
        return
    ends(name)
    if name == "late":
        time.sleep(0.6)
    elif name == "surrogate":
        result = {"content": [{"type": "text", "text": "@"}]}
        line = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result})
        sys.stdout.write(line.replace("@", "주문 \\ud83d 끝 \\ud83d\\ude00 \\\\ud83d\\u0000") + "\n")
        sys.stdout.flush()
        return
    elif name == "sampling":
        send({"id": "s1", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 5}})
    elif name == "changes":
        WISHES.append("changed")
        send({"method": "notifications/tools/list_changed"})
    elif name == "long":
        sys.stdout.write("x" * int(arguments["size"]))
        sys.stdout.flush()
        return
    elif name == "chatter":
        for i in range(1000):
            send({"method": "notifications/message", "params": {"level": "info", "data": f"{i} 말"}})
            sys.stdout.write("\n" * 200)
    answer(request, name, arguments)


def ends(name: str) -> None:
    """End the process, if that is what the tool is for."""
    if name in ("exit", "exit_reading") or (name == "exit_once" and not ONCE.exists()):
        ONCE.touch()
        print("마지막 말: key sk-abcdefghijklmnopqrstuvwx", file=sys.stderr, flush=True)
        os._exit(1)
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "orphan":  # in a session of its own, with our pipes
        subprocess.Popen(["sleep", "20"], start_new_session=True)
        os._exit(1)


def answer(request: dict[str, Any], name: str, arguments: Any) -> None:
    if name == "error":
        text(request, "backend offline", isError=True, structuredContent={"total": 7, "error": {"code": "E7"}})
    elif name == "blocks":
        send({"id": request["id"], "result": {"content": BLOCKS}})
    elif name == "empty":
        send({"id": request["id"], "result": {"content": [], "isError": True}})
    elif name == "environment":
        text(request, json.dumps(dict(os.environ)))
    elif name == "identity":
        text(request, json.dumps(request["params"].get("_meta")))
    elif name == "rpc_error":
        send({"id": request["id"], "error": {"code": -32602, "message": "no such 주문"}})
    elif name == "closed_code":
        send({"id": request["id"], "error": {"code": -32000, "message": "my own error"}})
    elif name in ("malformed", "malformed_reading"):
        send({"id": request["id"], "result": {"content": "no list"}})
    elif name in UNREADABLE:
        print(UNREADABLE[name].replace("ID", str(request["id"])).replace("DEEP", "[" * 3000 + "]" * 3000), flush=True)
    elif name == "arguments":
        text(request, json.dumps(sys.argv))
    elif name == "grandchild":
        text(request, str(subprocess.Popen(["sleep", "300"]).pid))
    else:
        text(request, json.dumps(arguments, ensure_ascii=False))


def serve(request: dict[str, Any]) -> None:
    method = request.get("method")
    if method == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": "raw", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}, "resources": {}}, "serverInfo": info}
        send({"id": request["id"], "result": result})
        if "banner" in WISHES:
            print("로그: ready\n\n{not json}\n[]", flush=True)
    elif method == "tools/list":
        send({"id": request["id"], "result": tools((request.get("params") or {}).get("cursor"))})
    elif method == "tools/call":
        call(request)
    elif method == "resources/list":
        send({"id": request["id"], "result": {"resources": [{"uri": "doc://정책", "name": "policy"}]}})
    elif method == "resources/read":
        if request["params"]["uri"] != "doc://정책":
            send({"id": request["id"], "error": {"code": -32002, "message": "not found"}})
            return
        parts = [{"uri": "doc://정책", "text": "환불은 7일"}, {"uri": "doc://b", "blob": "QUJD"}]
        send({"id": request["id"], "result": {"contents": parts}})
    elif "id" in request and method:
        send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    note(started=os.getpid())
    if "exit" in WISHES:
        sys.exit("설정이 없습니다")
    if "banner" in WISHES:
        print("🚀 welcome to the server", flush=True)
        sys.stdout.buffer.write(b"\xff\xfe not utf-8\n")
        sys.stdout.flush()
    if "flood" in WISHES:
        sys.stderr.write(("x" * 99 + "\n") * 100_000)
    if "stubborn" in WISHES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "deaf" in WISHES:
        time.sleep(300)
    initialized = False
    for line in sys.stdin:
        request = json.loads(line)
        note(got=request)
        if "strict" in WISHES and not initialized and request["method"] != "initialize":
            sys.exit("expected initialize")
        initialized = True
        serve(request)
    if "stubborn" in WISHES:
        time.sleep(300)


if __name__ == "__main__":
    main()
