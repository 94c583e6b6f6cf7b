"""The reader of JSON Lines: every byte sequence, right line numbers, bounded memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.canonical import dumps
from siafu.border.jsonl import Line, raw_lines, read_jsonl


def read(data: bytes, **options: Any) -> list[Line]:
    return list(read_jsonl(io.BytesIO(data), **options))


def values(data: bytes) -> list[Any]:
    return [line.value for line in read(data) if line.error is None]


def test_f46_bom_crlf_blank_lines_and_no_final_newline() -> None:
    lines = read(b'\xef\xbb\xbf{"id":1}\r\n\r\n{"id":2}\r\n    \t\r\n{"id":3}')
    assert [(line.number, line.value) for line in lines] == [(1, {"id": 1}), (3, {"id": 2}), (5, {"id": 3})]
    assert [line.offset for line in lines] == [0, 15, 32]


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\u0085", "\u000b", "\u001c"])
def test_only_newline_ends_a_line(char: str) -> None:
    data = b'{"t":"a\\u000bb"}\n' if char < " " else f'{{"t":"a{char}b"}}\n'.encode()
    assert len(values(data + b'{"t":"c"}\n')) == 2


@pytest.mark.parametrize(
    ("data", "number", "code", "words"),
    [
        (b'{"a":1}\n{"a":\n{"a":2}\n', 2, "not_json", "line 2 is not valid JSON"),
        (b'{"a":1}\n{"a":"\xed\x95', 2, "not_utf8", "byte 7 of the line"),
        (b'{"a":1}\n{"a":"b', 2, "not_json", "may be cut"),
        ("\ufeff{}\n{}\n".encode("utf-16"), 1, "not_utf8", "UTF-16"),
        ('{"a":"주문"}\n'.encode("cp949"), 1, "not_utf8", "save the file as UTF-8"),
        (b'{"a":NaN}\n', 1, "not_json", "NaN"),
        (b'{"a":1,"a":2}\n', 1, "not_json", "stands twice"),
        (b'{"a":1}\r{"a":2}\n', 1, "not_json", "Extra data"),
        (b'{"a":"\x00"}\n', 1, "not_json", "control character"),
        (b"[" * 100_000 + b"\n", 1, "too_large", "nested deeper"),
    ],
)
def test_a_bad_line_is_named_and_the_rest_goes_on(data: bytes, number: int, code: str, words: str) -> None:
    error = next(line.error for line in read(data) if line.error)
    assert (error.line, error.code) == (number, code)
    assert words in error.message


def test_f48_a_lone_surrogate_and_a_nul_become_replacement_characters() -> None:
    (value,) = values('{"text":"주문 \\ud83d 확인 \\u0000","fine":"\\ud83d\\ude00"}'.encode())
    assert value == {"text": "주문 \ufffd 확인 \ufffd", "fine": "😀"}
    assert json.loads(dumps(value)) == value


def test_a_line_of_a_megabyte_is_read_and_one_over_the_limit_is_skipped() -> None:
    big = json.dumps({"t": "가" * 350_000}, ensure_ascii=False).encode()
    assert len(big) > 1_000_000
    lines = read(big + b"\n" + b"x" * 5_000_000 + b'\n{"id":3}')
    assert lines[0].value == {"t": "가" * 350_000}
    assert lines[1].error is not None
    assert lines[1].error.code == "too_large"
    assert (lines[2].number, lines[2].value) == (3, {"id": 3})


@pytest.mark.parametrize(("size", "kept"), [(10, True), (11, False)])
def test_the_limit_is_exact(size: int, kept: bool) -> None:
    for end in (b"\n", b""):
        (raw,) = raw_lines(io.BytesIO(b"x" * size + end), max_line=10)
        assert (raw.data is not None) is kept


def test_a_huge_line_does_not_fill_the_memory() -> None:
    class Zeros(io.RawIOBase):
        left = 200_000_000

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = min(len(buffer), self.left)
            buffer[:size] = b"x" * size
            self.left -= size
            return size

    tracemalloc.start()
    (line,) = read_jsonl(io.BufferedReader(Zeros()), max_line=100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert line.error is not None
    assert line.error.message == "line 1 is too long: 200,000,000 bytes"
    assert peak < 2_000_000


@given(st.binary(max_size=300) | st.text(alphabet='{}"a:1,\n\r \ufeff\u2028', max_size=200).map(str.encode))
def test_any_bytes_are_read_and_every_line_is_where_it_says(data: bytes) -> None:
    pieces = data.split(b"\n")
    for line in read(data, max_line=40):
        assert data[line.offset :].startswith(pieces[line.number - 1])
        assert line.error is None or line.error.line == line.number
    numbers = {line.number for line in read(data)}
    body = [pieces[0].removeprefix(b"\xef\xbb\xbf"), *pieces[1:]]
    assert numbers == {number for number, piece in enumerate(body, 1) if piece.strip(b" \t\r\n")}


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=3), max_size=10))
def test_what_we_write_is_read_back(records: list[dict[str, Any]]) -> None:
    cleaned = [json.loads(json.dumps(r).replace("\\u0000", "\\ufffd")) for r in records]
    cleaned = [r for r in cleaned if all(s.encode("utf-8", "replace").decode() == s for s in str(r))]
    assert values(b"".join(dumps(r) + b"\n" for r in cleaned)) == cleaned
