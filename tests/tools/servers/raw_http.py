"""An MCP server over HTTP, written by hand on a real socket in this process, so that it can misbehave and be counted.

It speaks the handshake protocol of 2025-11-25. `on_call(name)` decides what a tools/call gets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

READING = {"readOnlyHint": True}
TOOLS: dict[str, dict[str, Any]] = {"read": READING, "write": {}, "add.note": {}}


class RawHttp:
    """`received`: every JSON-RPC message, with its session. `behave`: name of a tool -> what its next calls get, one
    after the other: "close" (commit, then close the socket), "forget" (404 for the session from now on), "hang",
    "status 500", "half" (cut body), "html", "odd", "sse", "sse odd", "sse cut", "surrogate", "sse surrogate",
    "accepted", "huge", "null", "deep". At `/sse` it speaks the old protocol: answers go to the stream there.
    """

    def __init__(self) -> None:
        self.received: list[tuple[str | None, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.behave: dict[str, list[str]] = {}
        self.sessions: set[str] = set()
        self.made = 0
        self.commits = 0
        self.sockets = 0
        self.refuse_all = ""
        self.hang_on_notifications = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.stream: asyncio.StreamWriter | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection, and forget all sessions, as a restart does."""
        if self._server is not None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None
        self.sessions.clear()

    def got(self, method: str) -> list[dict[str, Any]]:
        return [message for _, message in self.received if message.get("method") == method]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sockets += 1
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method = head[0].split()[0]
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.headers.append(headers)
        if head[0].startswith("GET /sse"):
            self.stream = writer
            self.sessions.discard("old")
            self._sse(writer, "event: endpoint\ndata: /mcp\n\n")
            await reader.read()
            return False
        if method != "POST":
            return self._answer(writer, 405, b"")
        message = json.loads(body)
        session = "old" if self.stream else headers.get("mcp-session-id")
        self.received.append((session, message))
        if self.refuse_all:
            return self._answer(
                writer, int(self.refuse_all), b"<html>no " + headers.get("authorization", "").encode(), kind="text/html"
            )
        if message.get("method") == "initialize":
            self.made += 1
            session = f"session-{self.made}"
            self.sessions |= {session, "old"}
            info = {"name": "raw", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            return self._result(writer, message, result, **{"mcp-session-id": session})
        if session is None:
            return self._error(writer, message, 400, -32600, "Bad Request: no session")
        if session not in self.sessions:
            return self._error(writer, message, 404, -32600, "Session not found")
        if "id" not in message:
            if self.hang_on_notifications:
                await asyncio.sleep(60)
            return self._answer(writer, 202, b"")
        if message["method"] == "tools/list":
            tools = [{"name": n, "inputSchema": {"type": "object"}, "annotations": a} for n, a in TOOLS.items()]
            return self._result(writer, message, {"tools": tools})
        return await self._call(writer, message, session)

    async def _call(self, writer: asyncio.StreamWriter, message: dict[str, Any], session: str) -> bool:
        name = message["params"]["name"]
        planned = self.behave.get(name)
        how = planned.pop(0) if planned else "answer"
        if how == "forget":
            self.sessions.discard(session)
            return self._error(writer, message, 404, -32600, "Session not found")
        self.commits += name != "read"
        result = {"content": [{"type": "text", "text": f"{name} 완료"}]}
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}, ensure_ascii=False)
        start = answer.partition('{"content"')[0]
        odd = answer.replace("완료", "\\ud83d 끝 \\ud83d\\ude00")
        simple: dict[str, Callable[[], bool]] = {
            "answer": lambda: self._answer(writer, 200, answer.encode()),
            "surrogate": lambda: self._answer(writer, 200, odd.encode()),
            "html": lambda: self._answer(writer, 200, b"<html>", kind="text/html"),
            "odd": lambda: self._answer(writer, 200, b'{"done": true}'),
            "null": lambda: self._answer(writer, 200, f"{start}null}}".encode()),
            "deep": lambda: self._answer(writer, 200, f"{start}{'[' * 3000}{']' * 3000}}}".encode()),
            "sse odd": lambda: self._sse(writer, "event: message\ndata: {done}\n\n"),
            "accepted": lambda: self._answer(writer, 202, b""),
            "sse": lambda: self._sse(writer, f"event: message\ndata: {answer}\n\n"),
            "sse surrogate": lambda: self._sse(writer, f": hi\n\nevent: message\ndata: {odd}\n\n"),
            "sse cut": lambda: self._sse(writer, ": nothing more\n\n"),
        }
        if how in simple:
            return simple[how]()
        if how.startswith("status "):
            return self._answer(writer, int(how.split()[1]), b"upstream is down", kind="text/plain")
        if how == "half":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{")
            await writer.drain()
        if how == "huge":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n")
            for _ in range(60):
                writer.write(b" " * 1_000_000)
                await writer.drain()
        if how == "hang":
            await asyncio.sleep(60)
        return False

    def _result(self, writer: asyncio.StreamWriter, message: dict[str, Any], result: Any, **headers: str) -> bool:
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        return self._answer(writer, 200, json.dumps(answer).encode(), **headers)

    def _error(self, writer: asyncio.StreamWriter, message: dict[str, Any], status: int, code: int, text: str) -> bool:
        answer = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": code, "message": text}}
        return self._answer(writer, status, json.dumps(answer).encode())

    def _sse(self, writer: asyncio.StreamWriter, text: str) -> bool:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        data = (head + text).encode()
        for start in range(0, len(data), 7):  # in pieces that no character or line respects
            writer.write(data[start : start + 7])
        return False

    def _answer(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json", **headers: str
    ) -> bool:
        if self.stream is not None and body and kind == "application/json":
            self.stream.write(b"event: message\ndata: " + body + b"\n\n")
            status, body = 202, b""
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return True
