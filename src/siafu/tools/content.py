"""What a tool server sends, as text for a model: plain functions on the JSON of the wire."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from siafu.border.canonical import dumps, loads
from siafu.border.text import clean_bytes, preview
from siafu.errors import BoundaryError
from siafu.tools.bounds import MAX_RESULT_BYTES, fitted
from siafu.tools.toolset import ToolResult

# A pair of surrogate escapes, a lone one, or any other escape: read from the left, so `\\ud83d` (an escaped backslash
# before letters) is not taken for one.
_ESCAPES = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)

# How an answer that cannot be read begins, and ends: its id stands before what may be odd, or behind it.
_BEGINS = re.compile(r'\{ ?(?:"(?:jsonrpc|id)": ?(?:"2\.0"|(\d{1,15})), ?)*"(?:result|error)":')
_ENDS = re.compile(r'"id": ?(\d{1,15}) ?\}$')
_EDGE = 200  # characters, more than either takes


def mended(data: bytes) -> bytes:
    """JSON text with every byte that is no UTF-8 and every lone surrogate escape replaced by U+FFFD.

    Strict JSON readers refuse the whole message otherwise, and its caller would wait for ever.
    """
    text = clean_bytes(data)
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPES.sub(lambda found: "\\ufffd" if found.group(1) else found.group(), text)
    return text.encode()


def asked_by(sent: Any) -> int | None:
    """The id of the request that a message which breaks the protocol answers; None = it is no answer, or does not say
    to what. sent: an object, or a text that is no JSON (cut, or too deep).
    """
    if isinstance(sent, Mapping):
        id = sent.get("id")
        return id if type(id) is int and "method" not in sent else None
    text = clean_bytes(sent) if isinstance(sent, bytes) else str(sent)
    begins = _BEGINS.match(text[:_EDGE].strip())
    found = begins and (begins if begins[1] else _ENDS.search(text[-_EDGE:].strip()))
    return int(found[1]) if found else None


def text_of(blocks: Sequence[Any]) -> str:
    """The content blocks of a tool's result as one text. Embedded text is taken in; what is no text becomes a short
    note with its type, address and size, never base64.
    """
    return "\n".join(_block(block) for block in blocks)


def result_of(text: str, structured: Any, *, is_error: bool) -> ToolResult:
    """A ToolResult, bounded to 256 KiB of text and as much structured content (more becomes None).

    A result without text shows its structured content, an error without text its code. `code` of an error: the text
    under `code` or `error.code` of the structured content; `later` when it has `retryable` as true beside it.
    """
    structured = _plain(structured)
    code, later = _said(structured) if is_error else ("", False)
    if not text.strip():
        if is_error:
            text = code or "the tool failed and did not say why"
        elif structured is not None:
            text = dumps(structured).decode()
    return ToolResult(text=fitted(text), structured=structured, is_error=is_error, code=code, later=later)


def resource_text(contents: Sequence[Any]) -> str:
    """The contents of a resource that was read, as one bounded text."""
    return fitted("\n".join(_embedded(part) if "text" not in part else str(part["text"]) for part in contents))


def _block(block: Any) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    if kind == "resource" and isinstance(block.get("resource"), Mapping):
        return _embedded(block["resource"])
    if kind == "resource_link":
        return _note(
            "link to a resource", block.get("name"), block.get("uri"), block.get("mimeType"), block.get("size")
        )
    if kind in ("image", "audio"):
        return _note(kind, block.get("mimeType"), _size(block.get("data")), "not shown")
    return _note(f"content of the type {kind}", "not shown")


def _embedded(resource: Mapping[str, Any]) -> str:
    words = ("resource", resource.get("uri"), resource.get("mimeType"))
    if isinstance(resource.get("text"), str):
        return f"{_note(*words)}\n{resource['text']}"
    return _note(*words, _size(resource.get("blob")), "not shown")


def _size(base64: Any) -> str | None:
    return f"{len(base64) * 3 // 4:,} bytes" if isinstance(base64, str) else None


def _note(*words: Any) -> str:
    return f"[{', '.join(preview(str(word), 200) for word in words if word not in (None, ''))}]"


def _plain(structured: Any) -> Any:
    """`structured` as any store takes it; None when it is too large, too deep or no JSON."""
    if structured is None:
        return None
    try:
        return loads(dumps(structured), max_bytes=MAX_RESULT_BYTES, what="the structured content")
    except (BoundaryError, TypeError, ValueError, RecursionError):
        return None


def _said(structured: Any) -> tuple[str, bool]:
    """The code of an error, and whether the tool says that it may go well later."""
    inner = structured.get("error") if isinstance(structured, dict) else None
    for part in (structured, inner):
        if isinstance(part, dict) and isinstance(code := part.get("code"), str | int) and not isinstance(code, bool):
            return preview(str(code), 100), part.get("retryable") is True
    return "", False
