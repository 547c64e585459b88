"""The clients that upload one document.

Each sends two documents, a small one to get started and then the large one, of which only the
second is measured: imports, certificates and the like are not what an upload costs. All check the
server's certificate, where there is TLS.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks._client import OURS, Client, PythonClient, Role, main
from benchmarks._curl import curl
from benchmarks._job import (
    API_KEY,
    API_SECRET,
    DOCUMENT_TYPE,
    ROOM_ID,
    UploadJob,
    signed_headers,
)
from benchmarks._measure import Meter, Sample, measured

CURL = "curl"
HTTPX = "httpx files="
AIOHTTP = "aiohttp FormData"
CEILING = "blocking sendall"

_CHUNK_BYTES = 256 * 1024


def clients() -> list[Client]:
    """Return the clients in the order in which they take turns."""
    ours, *others = [client.client(__name__) for client in _CLIENTS]
    missing = None if shutil.which("curl") else "curl is not on PATH"
    return [ours, Client(CURL, Role.PEER, curl, missing), *others]


async def _twice(upload: Callable[[str], Awaitable[object]], job: UploadJob) -> Sample:
    """Get started, then measure."""
    await upload(job.warm_up)
    return await measured(lambda: upload(job.document))


# --- the clients; each fresh process imports its own ---------------------------------------------


async def _ours(job: UploadJob) -> Sample:
    from meeting_async import HttpxTransport, MeetingClient  # noqa: PLC0415 - as above

    transport = HttpxTransport(verify=job.context() or True)
    async with MeetingClient(
        job.base_url, api_key=API_KEY, api_secret=API_SECRET, transport=transport
    ) as client:
        return await _twice(lambda path: client.upload_whiteboard_file(ROOM_ID, path), job)


async def _httpx(job: UploadJob) -> Sample:
    return await _files(import_module("httpx"), job)


async def _httpx2(job: UploadJob) -> Sample:
    return await _files(import_module("httpx2"), job)


async def _files(httpx: Any, job: UploadJob) -> Sample:
    """Upload with httpx or its fork."""
    verify = job.context() or True
    settings = {"timeout": 60, "trust_env": False, "headers": signed_headers(), "verify": verify}
    async with httpx.AsyncClient(**settings) as client:

        async def upload(path: str) -> None:
            with Path(path).open("rb") as file:  # noqa: ASYNC230 - as httpx itself reads it
                part = Path(path).name, file, DOCUMENT_TYPE
                reply = await client.post(job.url, files={"document": part})
            reply.raise_for_status()

        return await _twice(upload, job)


async def _aiohttp_form(job: UploadJob) -> Sample:
    aiohttp = import_module("aiohttp")
    async with _session(aiohttp, job) as session:

        async def upload(path: str) -> None:
            form = aiohttp.FormData()
            file = Path(path).open("rb")  # noqa: ASYNC230, SIM115 - aiohttp closes it
            form.add_field("document", file, filename="a.pdf", content_type=DOCUMENT_TYPE)
            await _post(session, job, data=form)

        return await _twice(upload, job)


async def _aiohttp_stream(job: UploadJob) -> Sample:
    async with _session(import_module("aiohttp"), job) as session:

        async def upload(path: str) -> None:
            await _post(session, job, data=_body(path), headers=_form_headers(path))

        return await _twice(upload, job)


def _session(aiohttp: Any, job: UploadJob) -> Any:
    connector = aiohttp.TCPConnector(ssl=job.context() or True)
    return aiohttp.ClientSession(
        connector=connector, headers=signed_headers(), raise_for_status=True
    )


async def _post(session: Any, job: UploadJob, **content: Any) -> None:
    async with session.post(job.url, **content) as reply:
        await reply.read()


# --- by hand -------------------------------------------------------------------------------------

_HEAD = b'--b\r\nContent-Disposition: form-data; name="document"; filename="a.pdf"\r\n\r\n'
_TAIL = b"\r\n--b--\r\n"


def _form_headers(path: str) -> dict[str, str]:
    length = len(_HEAD) + Path(path).stat().st_size + len(_TAIL)
    return {
        "Content-Type": "multipart/form-data; boundary=b",
        "Content-Length": str(length),
    }


async def _body(path: str) -> AsyncIterator[bytes]:
    """Yield the form, reading on the loop's thread."""
    yield _HEAD
    with Path(path).open("rb", buffering=0) as file:  # noqa: ASYNC230 - the fastest by hand
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
    yield _TAIL


def _blocking_sendall(job: UploadJob) -> Sample:
    context = job.context()
    _send_blocking(job, context, job.warm_up)
    with Meter() as meter:
        _send_blocking(job, context, job.document)
    return meter.sample()


def _send_blocking(job: UploadJob, context: ssl.SSLContext | None, path: str) -> None:
    headers = {**signed_headers(), **_form_headers(path)}
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    request = f"POST {urlsplit(job.url).path} HTTP/1.1\r\n{''.join(lines)}\r\n"
    with _connected(job.url, context) as connection, Path(path).open("rb", buffering=0) as file:
        connection.sendall(request.encode() + _HEAD)
        while chunk := file.read(_CHUNK_BYTES):
            connection.sendall(chunk)
        connection.sendall(_TAIL)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the sink did not accept the upload")


def _connected(url: str, context: ssl.SSLContext | None) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    if context is None:
        return connection
    return context.wrap_socket(connection, server_hostname=address.hostname)


_CLIENTS = (
    PythonClient(OURS, Role.OURS, _ours),
    PythonClient(HTTPX, Role.PEER, _httpx),
    PythonClient("httpx2 files=", Role.PEER, _httpx2, needs="httpx2"),
    PythonClient(AIOHTTP, Role.PEER, _aiohttp_form, needs="aiohttp"),
    PythonClient("aiohttp stream", Role.PEER, _aiohttp_stream, needs="aiohttp"),
    PythonClient(f"{OURS} (trio)", Role.VARIANT, _ours, loop="trio"),
    PythonClient(f"{OURS} (uvloop)", Role.VARIANT, _ours, loop="uvloop"),
    PythonClient(CEILING, Role.CEILING, _blocking_sendall, loop=None),
)

if __name__ == "__main__":
    main(_CLIENTS, UploadJob, sys.argv[1:])
