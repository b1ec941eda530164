"""Multipart forms: what is between two delimiters is a field, byte for byte, and nothing else is read."""

from __future__ import annotations

import pytest

from heedful.server.multipart_form import MAX_PARTS, parse_multipart
from heedful.server.strict_json import MalformedBodyError

TYPE = 'multipart/form-data; boundary="b 1"'


def part(header: str, content: bytes) -> bytes:
    return f"--b 1\r\nContent-Disposition: form-data; {header}\r\n\r\n".encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b 1--\r\n"


@pytest.mark.parametrize(
    "text", ["", "a", "a\r\nb", "\r\n", "a\n\n\rb\x0b\x0c\x85\u2028", "--b 2\r\n--", "grün 犬", "From me", "x" * 99_999]
)
def test_a_text_is_kept_as_it_is(text: str) -> None:
    fields = parse_multipart(form(part('name="q"', text.encode()), part("name=to", b"de")), TYPE)
    assert fields == {"q": text, "to": "de"}


def test_files_have_names_and_repeated_fields_are_lists() -> None:
    body = form(part('name="file"; filename="../ü.txt"', b"\xef\xbb\xbfa"), part("name=q", b"1"), part("name=q", b"2"))
    assert parse_multipart(body, TYPE) == {"file": {"name": "../ü.txt", "text": "a"}, "q": ["1", "2"]}


NESTED = b"".join(b"--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n" % (n, n + 1) for n in range(3_000))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b 1",
        part("name=q", b"x"),  # without an end
        form(part('filename="x.txt"', b"x")),
        form(b"--b 1\r\nno header\r\n"),
        form(part("name=q", b"\xff")),
        form(part("name=q\r\nContent-Transfer-Encoding: base64", b"eA==")),
        form(*[part("name=q", b"x")] * (MAX_PARTS + 1)),
        form(part("name=q; x=" + "y" * 5_000, b"x")),
        b"--b 1\r\nContent-Type: multipart/mixed; boundary=b0\r\n\r\n" + NESTED,
    ],
)
def test_other_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        parse_multipart(body, TYPE)


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/x;;=;", ""]
)
def test_a_type_without_a_boundary_is_refused(content_type: str) -> None:
    with pytest.raises(MalformedBodyError, match="not a multipart form"):
        parse_multipart(form(part("name=q", b"x")), content_type)
