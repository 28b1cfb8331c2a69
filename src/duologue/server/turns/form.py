"""A ``multipart/form-data`` body as fields and one file, read as it arrives.

Rules kept here: nothing is written to disk; the body's size is bounded by whoever reads it, the number of parts and the
size of fields here; a broken form is an error that says so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from duologue.errors import ClientFault, ErrorCode

MAX_PARTS: Final = 64
MAX_FIELD_BYTES: Final = 64 * 1024


@dataclass(slots=True)
class FormFile:
    """An uploaded file. ``media_type`` with its parameters, as the client wrote it."""

    name: str
    media_type: str
    content: bytes


@dataclass(slots=True)
class Form:
    """Fields by name (the last value of each), all values of repeated ones, and files by name."""

    fields: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, FormFile] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    headers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)


async def read_form(content_type: str, pieces: AsyncGenerator[bytes]) -> Form:
    """Read a form. Raises :class:`ClientFault` (``request_invalid``), and what ``pieces`` raises."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise _invalid("The body must be multipart/form-data with a boundary.")
    reader = _Reader()
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin,
                "on_header_field": reader.header_name,
                "on_header_value": reader.header_value,
                "on_header_end": reader.header_end,
                "on_part_data": reader.data,
                "on_part_end": reader.end,
                "on_end": reader.finish,
            },
        )
        async with aclosing(pieces):
            async for piece in pieces:
                parser.write(piece)
        parser.finalize()
    except FormParserError as fault:
        raise _invalid(f"The form cannot be read: {fault}.") from None
    if not reader.finished:
        raise _invalid("The form ends before its closing boundary.")
    return reader.form


class _Reader:
    """Callbacks of the parser."""

    def __init__(self) -> None:
        self.form = Form()
        self.finished = False
        self._parts = 0
        self._part = _Part()
        self._name = bytearray()
        self._value = bytearray()

    def begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _invalid(f"The form has more than {MAX_PARTS} parts.")
        self._part = _Part()

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._part.headers[self._name.decode("latin-1").lower()] = self._value.decode("utf-8", "replace")
        self._name.clear()
        self._value.clear()

    def data(self, data: bytes, start: int, end: int) -> None:
        self._part.data += data[start:end]
        if len(self._part.data) > MAX_FIELD_BYTES and "filename" not in self._part.headers.get(
            "content-disposition", ""
        ):
            raise _invalid(f"A field of the form is longer than {MAX_FIELD_BYTES} bytes.")

    def end(self) -> None:
        part, form = self._part, self.form
        _, options = parse_options_header(part.headers.get("content-disposition"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            filename = options[b"filename"].decode("utf-8", "replace")
            form.files[name] = FormFile(filename, part.headers.get("content-type", ""), bytes(part.data))
        else:
            value = part.data.decode("utf-8", "replace")
            form.fields[name] = value
            form.repeated.setdefault(name.removesuffix("[]"), []).append(value)
        self._part = _Part()

    def finish(self) -> None:
        self.finished = True


def _invalid(message: str) -> ClientFault:
    return ClientFault(ErrorCode.REQUEST_INVALID, message)
