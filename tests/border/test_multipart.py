"""Forms as they arrive: in pieces of any size, with anything in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.multipart import MAX_HEAD, MAX_PARTS, Multipart, Part, boundary_of
from siafu.errors import BoundaryError, TooLarge

B = b"--b\r\n"
END = b"--b--\r\n"


def told(data: bytes, sizes: list[int] | None = None) -> list[tuple[str, str | None, bytes]]:
    """Name, file name and data of every part, when the form comes in pieces of these sizes, then byte by byte."""
    form, found = Multipart(b"b"), list[tuple[str, str | None, bytes]]()
    for size in [*(sizes or [len(data)]), *([1] * len(data))]:
        piece, data = data[:size], data[size:]
        for each in form.feed(piece):
            if isinstance(each, Part):
                found.append((each.name, each.filename, b""))
            else:
                found[-1] = (*found[-1][:2], found[-1][2] + each)
    form.end()
    return found


def part(head: str, data: bytes) -> bytes:
    return B + f"Content-Disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n"


PIECES = [b"\r\n--b", b"\r\n", b"--b--", b"\r", b"-", b"x", b"\0", "가".encode()]


def harmless(pieces: list[bytes]) -> bytes:
    """Data that looks like a boundary and holds none."""
    data = b"".join(pieces)
    return data if b"\r\n--b" not in b"\r\n" + data else data.replace(b"--b", b"--c")


tricky = st.lists(st.sampled_from(PIECES), max_size=12).map(harmless)


@given(st.lists(tricky, max_size=4), st.lists(st.integers(1, 40), max_size=20))
def test_what_goes_in_comes_out_however_it_is_cut(parts: list[bytes], sizes: list[int]) -> None:
    form = b"".join(part(f'name="n{number}"', data) for number, data in enumerate(parts)) + END
    assert told(form, sizes) == [(f"n{number}", None, data) for number, data in enumerate(parts)]


@pytest.mark.parametrize(
    ("head", "name", "filename"),
    [
        ('name="file"; filename="질문.jsonl"', "file", "질문.jsonl"),
        ("name=file; filename=a.jsonl", "file", "a.jsonl"),
        (r'name="f\"x"; filename="a\\b"', 'f"x', r"a\b"),
        ('name="file"; filename="x"; filename*=UTF-8\'\'%EC%A7%88%2e%2e', "file", "질.."),
        ("name=\"file\"; filename*=latin-1''x", "file", None),
        ('name="file"; filename=""', "file", ""),
    ],
)
def test_names(head: str, name: str, filename: str | None) -> None:
    assert told(part(head, b"x") + END) == [(name, filename, b"x")]


def test_what_stands_around_the_form_is_passed_over() -> None:
    assert told(b"preamble\r\n" + part('name="a"', b"1") + END + b"epilogue --b\r\n") == [("a", None, b"1")]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", BoundaryError),
        (part('name="a"', b"1"), BoundaryError),  # no end
        (part('name="a"', b"1")[:-9], BoundaryError),
        (B + b"Content-Type: text/plain\r\n\r\nx\r\n" + END, BoundaryError),
        (B + b"\r\nx\r\n" + END, BoundaryError),
        (b"--bx\r\n" + END, BoundaryError),
        (b"--b" + b" " * (MAX_HEAD + 1), BoundaryError),
        (B + b"x" * (MAX_HEAD + 4), TooLarge),
        (B + b"x" * (MAX_HEAD + 4) + b"\r\n\r\n", TooLarge),
        (part('name="a"', b"1") * (MAX_PARTS + 1) + END, TooLarge),
    ],
)
def test_what_is_no_form_is_refused(data: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        told(data)


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data;charset=utf-8;boundary="a b:c"', b"a b:c"),
        ("multipart/form-data", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=" + "a" * 71, None),
        ('multipart/form-data; boundary="a "', None),
        ("application/json; boundary=abc", None),
    ],
)
def test_boundaries(content_type: str, boundary: bytes | None) -> None:
    if boundary is None:
        with pytest.raises(BoundaryError):
            boundary_of(content_type)
    else:
        assert boundary_of(content_type) == boundary
