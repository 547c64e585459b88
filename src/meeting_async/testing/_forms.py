"""Receiving the upload form (RFC 7578) while it arrives, in constant memory.

Nothing is refused before the whole body is there, so a fault of the form is only remembered:
authentication, the room and its lock are examined first (`_uploads.py`).
"""

import attrs
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from ._files import Intake

#: A field that is not a file holds a link; no server or proxy takes longer ones than this.
MAX_FIELD_BYTES = 64 * 1024


@attrs.define(eq=False)
class Part:
    """One part of a form. It is a file if and only if it has a file name, however it is called."""

    field: str
    filename: str
    content_type: str
    intake: Intake


@attrs.define
class Form:
    """A received form; the parts that are none of the interface's are ignored.

    ``fault`` says why the form cannot be used at all, and is empty for one that can.
    """

    document: Part | None = None
    document_link: str = ""
    fault: str = ""


class FormReceiver:
    """Reads a multipart form chunk by chunk: `write` the body, then `finish`."""

    def __init__(self, content_type: str, *, keep_content: bool) -> None:
        self._keep_content = keep_content
        self._form = Form()
        self._headers: dict[str, bytes] = {}
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._part = Part("", "", "", Intake())
        self._ended = False
        self._parser = self._start(content_type)

    def write(self, chunk: bytes) -> None:
        """Take in the next bytes of the body; after a fault they are dropped."""
        if self._parser is None:
            return
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            self._fail(f"the form cannot be read: {error}")

    def finish(self) -> Form:
        """Return the form after the last byte."""
        if not self._ended and not self._form.fault:
            self._fail("the form ends before its closing boundary")
        return self._form

    def _start(self, content_type: str) -> MultipartParser | None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            self._form.fault = "the body must be multipart/form-data with a boundary"
            return None
        try:
            return MultipartParser(
                boundary,
                {
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            self._form.fault = str(error)
            return None

    def _fail(self, fault: str) -> None:
        self._form = Form(fault=fault)
        self._parser = None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        self._headers[name] = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition"))
        filename = options.get(b"filename", b"").decode(errors="replace")
        self._part = Part(
            field=options.get(b"name", b"").decode(errors="replace"),
            filename=filename,
            content_type=self._headers.get("content-type", b"").decode("latin-1"),
            intake=Intake(keep_content=self._keep_content or not filename),
        )
        self._headers.clear()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        part.intake.write(memoryview(data)[start:end])
        if not part.filename and part.intake.size > MAX_FIELD_BYTES:
            raise FormParserError(f"a field is longer than {MAX_FIELD_BYTES} bytes")

    def _on_part_end(self) -> None:
        part = self._part
        if part.field == "document" and part.filename:
            if self._form.document:
                raise FormParserError("one request carries one file only")
            self._form.document = part
        elif part.field == "document_link" and not part.filename:
            self._form.document_link = (part.intake.content or b"").decode(errors="replace")

    def _on_end(self) -> None:
        self._ended = True


async def receive_form(request: Request, *, keep_content: bool) -> Form:
    """Receive the whole body as a form, whatever it holds."""
    receiver = FormReceiver(request.headers.get("content-type", ""), keep_content=keep_content)
    async for chunk in request.stream():
        receiver.write(chunk)
    return receiver.finish()
