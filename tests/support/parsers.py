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
from typing import Any

from python_multipart.multipart import parse_form
from werkzeug.formparser import MultiPartParser as WerkzeugParser

Part = tuple[str, str | None, str, bytes]


def by_python_multipart(content_type: bytes, body: bytes) -> list[Part]:
    """Parse with python-multipart, which Starlette and FastAPI use."""
    parts: list[Part] = []

    def end_field(field: Any) -> None:
        parts.append((field.field_name.decode(), None, "", field.value or b""))

    def end_file(file: Any) -> None:
        with contextlib.closing(file):
            file.file_object.seek(0)
            names = file.field_name.decode(), file.file_name.decode()
            parts.append((*names, file.content_type or "", file.file_object.read()))

    # In odd pieces: boundaries are found across their edges.
    headers = {"Content-Type": content_type}
    parse_form(headers, io.BytesIO(body), end_field, end_file, chunk_size=7)
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
