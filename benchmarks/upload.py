"""One upload of a large document, compared with others. Run by ``python -m benchmarks``.

Each client sends two documents to a discarding sink, a small one to get started and then the large
one, of which only the second is measured: imports, certificates, and our question for the room are
not what an upload costs. All check the sink's certificate, where there is TLS.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from benchmarks import _sink, _wire
from benchmarks._compare import GAP, MEMORY, Column, Comparison, Options, Target, Task, compare
from benchmarks._compare import shown as shown_size
from benchmarks._curl import curl
from benchmarks._measure import Meter, Sample, measured, measured_alone
from benchmarks._process import OURS, Client, Role, ours_on_other_loops
from benchmarks._sink import Certificate

TITLE = "One upload"
NOTES = f"""\
* MB/s: 10^6 bytes per second, from the call to the accepted reply (curl: its time_total). More is
  better; of the other figures less.
* CPU: user and system time of the client, without start-up.
* memory: largest growth of the resident set; up to 0.25 MiB is noise.
* gap: how late a task that sleeps 1 ms wakes up, at most; on an idle event loop about 1 ms. It is
  measured in another process: that task costs time itself.
* The document is a file in the page cache. The server is {_sink.DESCRIPTION}."""

CURL = "curl"
HTTPX = "httpx files="
SENDALL = "blocking sendall"
CHUNK_BYTES = 256 * 1024
WARM_UP_BYTES = 300 * 1024
"""Large enough that the room is asked for before it, and not again before the second document."""


@attrs.frozen
class Job:
    """Two uploads to one server."""

    base_url: str
    warm_up: str
    """Path of the document that is sent first and not measured."""
    document: str
    """Path of the document whose upload is measured."""
    ca_file: str | None = None
    """Certificates (PEM) that the server's is checked against; ``None``: no TLS."""
    is_watched: bool = False
    """Whether a task beside the upload measures gaps."""

    @property
    def url(self) -> str:
        """Where the documents go."""
        return self.base_url + _wire.UPLOAD_PATH


async def _twice(upload: Callable[[str], Awaitable[object]], job: Job) -> Sample:
    """Get started, then measure."""
    await upload(job.warm_up)
    measure = measured if job.is_watched else measured_alone
    return await measure(lambda: upload(job.document))


# --- the clients; each fresh process imports its own ---------------------------------------------


async def _ours(job: Job) -> Sample:
    from meeting_async import MeetingClient  # noqa: PLC0415 - as above
    from meeting_async.transports import HttpTransport  # noqa: PLC0415 - as above

    transport = HttpTransport(verify=_wire.client_context(job.ca_file) or True)
    async with MeetingClient(
        job.base_url, api_key=_wire.API_KEY, api_secret=_wire.API_SECRET, transport=transport
    ) as client:
        return await _twice(lambda path: client.upload_whiteboard_file(_wire.ROOM_ID, path), job)


async def _httpx(job: Job) -> Sample:
    return await _files(import_module("httpx"), job)


async def _httpx2(job: Job) -> Sample:
    return await _files(import_module("httpx2"), job)


async def _files(httpx: Any, job: Job) -> Sample:
    """Upload with httpx or its fork."""
    verify = _wire.client_context(job.ca_file) or True
    headers = _wire.upload_headers()
    async with httpx.AsyncClient(
        timeout=60, trust_env=False, headers=headers, verify=verify
    ) as client:

        async def upload(path: str) -> None:
            with Path(path).open("rb") as file:  # noqa: ASYNC230 - as httpx itself reads it
                part = Path(path).name, file, _wire.DOCUMENT_TYPE
                reply = await client.post(job.url, files={"document": part})
            reply.raise_for_status()

        return await _twice(upload, job)


async def _aiohttp_form(job: Job) -> Sample:
    aiohttp = import_module("aiohttp")
    async with _session(aiohttp, job) as session:

        async def upload(path: str) -> None:
            form = aiohttp.FormData()
            file = Path(path).open("rb")  # noqa: ASYNC230, SIM115 - aiohttp closes it
            kind = _wire.DOCUMENT_TYPE
            form.add_field("document", file, filename="a.pdf", content_type=kind)
            async with session.post(job.url, data=form) as reply:
                await reply.read()

        return await _twice(upload, job)


async def _aiohttp_stream(job: Job) -> Sample:
    async with _session(import_module("aiohttp"), job) as session:

        async def upload(path: str) -> None:
            async with session.post(job.url, data=_body(path), headers=_framing(path)) as reply:
                await reply.read()

        return await _twice(upload, job)


def _session(aiohttp: Any, job: Job) -> Any:
    connector = aiohttp.TCPConnector(ssl=_wire.client_context(job.ca_file) or True)
    return aiohttp.ClientSession(
        connector=connector, headers=_wire.upload_headers(), raise_for_status=True
    )


async def _body(path: str) -> AsyncIterator[bytes]:
    """Yield the form, reading on the loop's thread."""
    yield _wire.FORM_HEAD
    with Path(path).open("rb", buffering=0) as file:  # noqa: ASYNC230 - the fastest by hand
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
    yield _wire.FORM_TAIL


def _framing(path: str) -> dict[str, str]:
    length = len(_wire.FORM_HEAD) + Path(path).stat().st_size + len(_wire.FORM_TAIL)
    return {"Content-Type": _wire.FORM_TYPE, "Content-Length": str(length)}


def _curl(job: Job) -> Sample:
    return curl(job.url, (job.warm_up, job.document), job.ca_file)


def _sendall(job: Job) -> Sample:
    """Read and send in a bare loop: what the sink takes."""
    context = _wire.client_context(job.ca_file)
    _send_blocking(job, context, job.warm_up)
    with Meter() as meter:
        _send_blocking(job, context, job.document)
    return meter.sample()


def _send_blocking(job: Job, context: ssl.SSLContext | None, path: str) -> None:
    headers = {**_wire.upload_headers(), **_framing(path)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = f"POST {_wire.UPLOAD_PATH} HTTP/1.1\r\n{lines}\r\n"
    with _connected(job.url, context) as connection, Path(path).open("rb", buffering=0) as file:
        connection.sendall(request.encode() + _wire.FORM_HEAD)
        while chunk := file.read(CHUNK_BYTES):
            connection.sendall(chunk)
        connection.sendall(_wire.FORM_TAIL)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the sink did not accept the upload")


def _connected(url: str, context: ssl.SSLContext | None) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    if context is None:
        return connection
    return context.wrap_socket(connection, server_hostname=address.hostname)


_OURS = Client(OURS, _ours, Role.OURS)
CLIENTS = (
    _OURS,
    Client(SENDALL, _sendall, loop=None),
    Client(CURL, _curl, loop=None, missing=None if shutil.which("curl") else "not on PATH"),
    Client(HTTPX, _httpx),
    Client("httpx2 files=", _httpx2, needs="httpx2"),
    Client("aiohttp FormData", _aiohttp_form, needs="aiohttp"),
    Client("aiohttp stream", _aiohttp_stream, needs="aiohttp"),
    *ours_on_other_loops(_OURS),
)


# --- the comparison ------------------------------------------------------------------------------

_BOUNDS = {
    ("1 GiB", False): {SENDALL: 0.75, CURL: 0.9, HTTPX: 2.0},
    ("30 MiB", False): {SENDALL: 0.65, CURL: 0.75, HTTPX: 2.0},
    ("1 GiB", True): {CURL: 1.05, SENDALL: 0.8, HTTPX: 1.6},
    ("30 MiB", True): {CURL: 0.9, HTTPX: 1.6},
}
"""By size and whether over TLS: what our MB/s are to be, divided by a peer's."""


def comparisons(options: Options) -> Iterator[Comparison]:
    """Compare uploads of all sizes, over TCP and over TLS."""
    sizes = [options.size] if options.size else [2**20] if options.quick else [2**30, 30 * 2**20]
    protocols = [False, True] if shutil.which("openssl") else [False]
    for size in sizes:
        for tls in protocols:
            yield _compared(size, tls, options)


def _compared(size: int, tls: bool, options: Options) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        warm_up = _wire.make_document(Path(folder, "warm-up.pdf"), WARM_UP_BYTES)
        document = _wire.make_document(Path(folder, "document.pdf"), size)
        certificate = _sink.make_certificate(Path(folder)) if tls else None

        def sample(client: Client) -> Sample:
            return _sample(client, warm_up, document, certificate)

        clients = options.chosen(CLIENTS)
        return compare(_task(size, tls), clients, sample, options.rounds)


def _sample(
    client: Client, warm_up: Path, document: Path, certificate: Certificate | None
) -> Sample:
    """Let a client upload to a sink of its own, and check what arrived."""
    with document.open("rb") as file:  # so that it is in the page cache
        while file.read(2**20):
            pass
    samples = []
    for is_watched in (False, True) if client.loop else (False,):
        with _sink.running_sink(certificate) as sink:
            ca_file = certificate.path if certificate else None
            job = Job(sink.base_url, str(warm_up), str(document), ca_file, is_watched)
            samples.append(client.measure(__name__, job))
            sink.check_received(*[path.stat().st_size for path in (warm_up, document)])
    return attrs.evolve(samples[0], gap_seconds=samples[-1].gap_seconds)


def _task(size: int, tls: bool) -> Task:
    speed = Column("MB/s", lambda s: size / s.seconds / 1e6, 0, more_is_better=True)
    cpu = Column("CPU s/GiB", lambda s: s.cpu_seconds / size * 2**30, 3)
    bounds = _BOUNDS.get((shown_size(size), tls), {})
    targets = [Target(speed, bound, peer) for peer, bound in bounds.items()]
    targets += [Target(GAP, 5.0), Target(MEMORY, 4.0)] if bounds else []
    title = f"{shown_size(size)} over {'TLS' if tls else 'TCP'}"
    return Task(title, (speed, cpu, MEMORY, GAP), tuple(targets))
