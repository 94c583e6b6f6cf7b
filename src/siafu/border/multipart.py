"""`multipart/form-data` (RFC 7578) as it arrives, in bounded memory: fed with pieces of any size, it tells parts and
their data. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

import msgspec

from siafu.border.text import clean, clean_bytes
from siafu.errors import BoundaryError, TooLarge

MAX_HEAD = 8 * 1024  # bytes of a part's headers
MAX_PARTS = 32
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")  # RFC 2046
_PARAMETER = re.compile(r';\s*([\w*-]+)\s*=\s*(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^;"\s]+))')
_ESCAPED = re.compile(r'\\(["\\])')


class Part(msgspec.Struct, frozen=True):
    """A part begins. `filename`: None for a plain field."""

    name: str
    filename: str | None


def boundary_of(content_type: str) -> bytes:
    """What separates the parts of a body with this Content-Type. Raises: BoundaryError when it is no form."""
    kind, _, rest = content_type.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise BoundaryError("send the file as a form: Content-Type: multipart/form-data")
    boundary = _parameters(";" + rest).get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary):
        raise BoundaryError("the Content-Type multipart/form-data names no boundary of 1 to 70 characters")
    return boundary.encode()


class Multipart:
    """Takes a form apart. After a `Part`, what follows until the next one is its data."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first mark stands at the beginning of a line, too
        self._state = "before"  # before, mark, head, data, after
        self._parts = 0

    def feed(self, data: bytes) -> Iterator[Part | bytes]:
        """What a further piece of the body tells. To be read to its end.

        Raises: BoundaryError when it is no form, TooLarge for headers or parts beyond the limits.
        """
        self._buffer += data
        while self._state != "after":
            if self._state in ("before", "data"):
                yield from self._until_mark()
                if self._state != "mark":
                    return
            elif self._state == "mark":
                if not self._read_mark():
                    return
            elif (part := self._read_head()) is None:
                return
            else:
                yield part
        self._buffer.clear()

    def end(self) -> None:
        """The body has ended. Raises: BoundaryError when the form has not."""
        if self._state != "after":
            raise BoundaryError("the form ends before its last boundary")

    def _until_mark(self) -> Iterator[bytes]:
        at = self._buffer.find(self._mark)
        size = at if at >= 0 else max(0, len(self._buffer) - len(self._mark) + 1)
        found = bytes(self._buffer[:size])
        del self._buffer[: size + (len(self._mark) if at >= 0 else 0)]
        inside = self._state == "data"
        if at >= 0:
            self._state = "mark"
        if found and inside:
            yield found

    def _read_mark(self) -> bool:
        """What follows a mark: `--` at the end of the form, else the end of the line."""
        if len(self._buffer) < 2:
            return False
        if self._buffer.startswith(b"--"):
            self._state = "after"
            return True
        end = self._buffer.find(b"\r\n")
        padding = bytes(self._buffer if end < 0 else self._buffer[:end])
        if padding.strip(b" \t\r") or len(padding) > MAX_HEAD:
            raise BoundaryError("there is something else behind a boundary of the form")
        if end < 0:
            return False
        del self._buffer[:end]  # the line end stays: a part without headers begins with an empty line
        self._state = "head"
        return True

    def _read_head(self) -> Part | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_HEAD or (end < 0 and len(self._buffer) > MAX_HEAD):
            raise TooLarge(f"the headers of a part may have at most {MAX_HEAD:,} bytes")
        if end < 0:
            return None
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge(f"a form may have at most {MAX_PARTS} parts")
        head = clean_bytes(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self._state = "data"
        return _part(head)


def _part(head: str) -> Part:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        kind, semicolon, rest = value.partition(";")
        if name.strip().lower() == "content-disposition" and kind.strip().lower() == "form-data":
            found = _parameters(semicolon + rest)
            if "name" in found:
                return Part(found["name"], _filename(found))
    raise BoundaryError('a part of the form has no Content-Disposition: form-data; name="..."')


def _parameters(text: str) -> dict[str, str]:
    return {name.lower(): _ESCAPED.sub(r"\1", quoted) or plain for name, quoted, plain in _PARAMETER.findall(text)}


def _filename(found: dict[str, str]) -> str | None:
    """As RFC 5987 writes it, where that stands beside the plain one."""
    charset, _, rest = found.get("filename*", "").partition("'")
    if charset.lower() == "utf-8":
        return clean(unquote(rest.partition("'")[2], errors="replace"))
    return found.get("filename")
