"""Three independent parsers of multipart forms, each as one function.

Each returns the parts of a form as ``(name, file name or None, content type, content)``, the file
name as the parser itself understands it, before any sanitising that a framework adds.
"""

from __future__ import annotations

import contextlib
import email
import email.message
import email.policy
import io
from collections.abc import Callable

from python_multipart.multipart import MultipartParser, parse_options_header
from werkzeug.formparser import MultiPartParser as WerkzeugParser

Part = tuple[str, str | None, str, bytes]


def by_python_multipart(content_type: bytes, body: bytes) -> list[Part]:
    """Parse with python-multipart, which Starlette and FastAPI use."""
    parts: list[Part] = []
    names: list[bytes] = []
    values: list[bytes] = []
    content = bytearray()
    name, value = bytearray(), bytearray()

    def end_header() -> None:
        names.append(bytes(name).lower())
        values.append(bytes(value))
        name.clear()
        value.clear()

    def end_part() -> None:
        headers = dict(zip(names, values, strict=True))
        _, options = parse_options_header(headers[b"content-disposition"])
        filename = options[b"filename"].decode() if b"filename" in options else None
        kind = headers.get(b"content-type", b"").decode("ascii")
        parts.append((options[b"name"].decode(), filename, kind, bytes(content)))
        for used in (names, values, content):
            used.clear()

    _, options = parse_options_header(content_type)
    parser = MultipartParser(
        options[b"boundary"],
        {
            "on_header_field": lambda data, start, end: name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: value.extend(data[start:end]),
            "on_header_end": end_header,
            "on_part_data": lambda data, start, end: content.extend(data[start:end]),
            "on_part_end": end_part,
        },
    )
    for start in range(0, len(body), 7):  # odd pieces: boundaries are found across their edges
        parser.write(body[start : start + 7])
    parser.finalize()
    return parts


def by_werkzeug(content_type: bytes, body: bytes) -> list[Part]:
    """Parse with Werkzeug, which Flask uses."""
    boundary = content_type.partition(b"boundary=")[2]
    form, files = WerkzeugParser(max_form_memory_size=None).parse(
        io.BytesIO(body), boundary, len(body)
    )
    parts: list[Part] = [(name, None, "", text.encode()) for name, text in form.items(multi=True)]
    for name, file in files.items(multi=True):
        with contextlib.closing(file):
            parts.append((name, file.filename, file.headers["Content-Type"], file.read()))
    return parts


def by_standard_library(content_type: bytes, body: bytes) -> list[Part]:
    """Parse with the standard library's parser of e-mail, the strictest about line ends."""
    message = email.message_from_bytes(
        b"Content-Type: " + content_type + b"\r\n\r\n" + body, policy=email.policy.compat32
    )
    assert not message.defects
    parts: list[Part] = []
    for part in message.get_payload():
        assert isinstance(part, email.message.Message)
        assert not part.defects
        raw = {name.lower(): value for name, value in part.raw_items()}
        text = raw["content-disposition"].encode("ascii", "surrogateescape").decode("utf-8")
        disposition = email.message.Message()
        disposition["Content-Disposition"] = text
        name = disposition.get_param("name", header="content-disposition")
        filename = disposition.get_param("filename", header="content-disposition")
        assert isinstance(name, str)
        assert filename is None or isinstance(filename, str)
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        parts.append((name, filename, raw.get("content-type", ""), content))
    return parts


PARSERS: list[Callable[[bytes, bytes], list[Part]]] = [
    by_python_multipart,
    by_werkzeug,
    by_standard_library,
]
