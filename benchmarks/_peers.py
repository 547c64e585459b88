"""The clients that are compared, each of which runs in a fresh process for every sample.

Each sends two documents, a small one to get started and then the large one, of which only the
second is measured: imports, certificates and the like are not what an upload costs.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import attrs

from benchmarks._curl import curl
from benchmarks._job import API_KEY, API_SECRET, DOCUMENT_TYPE, ROOM_ID, Job, signed_headers
from benchmarks._measure import Meter, Sample, measured
from benchmarks._sink import ROOT

OURS = "meeting_async"
CURL = "curl"
HTTPX = "httpx files="
CEILING = "blocking sendall"
"""No client, but what the sink can take: a loop of read and send that does nothing else."""

_CEILING_CHUNK_BYTES = 256 * 1024


def available() -> dict[str, Callable[[Job], Sample]]:
    """Return the peers in the order in which they take turns."""
    peers = {OURS: _in_fresh_process(OURS)}
    if shutil.which("curl"):
        peers[CURL] = curl  # it is a fresh process by itself
    return peers | {HTTPX: _in_fresh_process(HTTPX), CEILING: _in_fresh_process(CEILING)}


def _in_fresh_process(name: str) -> Callable[[Job], Sample]:
    def run(job: Job) -> Sample:
        command = [sys.executable, "-m", "benchmarks._peers", name, json.dumps(attrs.asdict(job))]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return Sample(**json.loads(done.stdout))

    return run


# --- in the fresh process ------------------------------------------------------------------------


async def _ours(job: Job) -> Sample:
    from meeting_async import MeetingClient  # noqa: PLC0415 - each process loads its own client

    async with MeetingClient(job.base_url, api_key=API_KEY, api_secret=API_SECRET) as client:
        await client.upload_whiteboard_file(ROOM_ID, job.warm_up)
        return await measured(lambda: client.upload_whiteboard_file(ROOM_ID, job.document))


async def _httpx_files(job: Job) -> Sample:
    import httpx  # noqa: PLC0415 - each process loads its own client

    async with httpx.AsyncClient(timeout=60, trust_env=False, headers=signed_headers()) as client:

        async def upload(path: str) -> None:
            with Path(path).open("rb") as file:  # noqa: ASYNC230 - as httpx itself reads it
                part = Path(path).name, file, DOCUMENT_TYPE
                reply = await client.post(job.url, files={"document": part})
            reply.raise_for_status()

        await upload(job.warm_up)
        return await measured(lambda: upload(job.document))


def _blocking_sendall(job: Job) -> Sample:
    _send_blocking(job, job.warm_up)
    with Meter() as meter:
        _send_blocking(job, job.document)
    return meter.sample()


def _send_blocking(job: Job, path: str) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="document"; filename="a.pdf"\r\n\r\n'
    tail = b"\r\n--b--\r\n"
    length = len(head) + Path(path).stat().st_size + len(tail)
    headers = {
        **signed_headers(),
        "Content-Type": "multipart/form-data; boundary=b",
        "Content-Length": str(length),
    }
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    address = urlsplit(job.url)
    request = f"POST {address.path} HTTP/1.1\r\n{''.join(lines)}\r\n"
    with (
        socket.create_connection((address.hostname, address.port)) as connection,
        Path(path).open("rb", buffering=0) as file,
    ):
        connection.sendall(request.encode() + head)
        while chunk := file.read(_CEILING_CHUNK_BYTES):
            connection.sendall(chunk)
        connection.sendall(tail)
        if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
            raise RuntimeError("the sink did not accept the upload")


def main(name: str, job: Job) -> None:
    """Run one peer in this process and print its sample as JSON."""
    if name == CEILING:
        sample = _blocking_sendall(job)
    else:
        client = {OURS: _ours, HTTPX: _httpx_files}[name]
        sample = anyio.run(client, job, backend=job.backend)
    print(json.dumps(attrs.asdict(sample)))


if __name__ == "__main__":
    main(sys.argv[1], Job(**json.loads(sys.argv[2])))
