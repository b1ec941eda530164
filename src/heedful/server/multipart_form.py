"""Multipart forms, parsed in memory: nothing is written, and the name of a file opens nothing."""

from __future__ import annotations

from email.message import Message
from typing import Any

from heedful.server.strict_json import MalformedBodyError

MAX_PARTS = 64
MAX_PART_HEADER = 4_096
NOT_A_FORM = "the body is not a multipart form"


def parse_multipart(body: bytes, content_type: str) -> dict[str, Any]:
    """The fields of a form: strings, for a file its name and text, and a list for a field that is repeated.

    A part is what stands between two delimiters (RFC 7578). Forms do not nest: a part's own content type is not read.
    """
    boundary = _parameter(content_type, "content-type", "boundary")
    if not boundary:
        raise MalformedBodyError(NOT_A_FORM)
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"), MAX_PARTS + 1)
    if not parts or not parts[-1].startswith(b"--"):
        raise MalformedBodyError(f"{NOT_A_FORM} of at most {MAX_PARTS} fields")
    fields: dict[str, list[Any]] = {}
    for part in parts[:-1]:
        name, value = _field(part)
        fields.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def _field(part: bytes) -> tuple[str, Any]:
    """The name of a part and its text; of a file, `{"name": …, "text": …}`."""
    head, separator, content = part.partition(b"\r\n\r\n")
    if not separator or len(head) > MAX_PART_HEADER:
        raise MalformedBodyError(NOT_A_FORM)
    try:
        lines, text = head.decode().split("\r\n"), content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MalformedBodyError("a field or file of the form is not UTF-8") from None
    headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    disposition = headers.get("content-disposition", "")
    name, file_name = (_parameter(disposition, "content-disposition", key) for key in ("name", "filename"))
    if not name or headers.get("content-transfer-encoding", "binary").lower() not in ("binary", "8bit", "7bit"):
        raise MalformedBodyError(NOT_A_FORM)
    return name, text if file_name is None else {"name": file_name, "text": text}


def _parameter(value: str, header: str, name: str) -> str | None:
    """A parameter of a header; None if it has none."""
    message = Message()
    message[header] = value.replace("\r", " ").replace("\n", " ")
    parameter = message.get_param(name, header=header)
    if isinstance(parameter, tuple):  # RFC 2231: character set, language, value
        parameter = parameter[2]
    return parameter
