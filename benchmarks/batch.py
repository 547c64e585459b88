"""Batches of small uploads: CPU, journal and busy places. Run by ``python -m benchmarks``.

Ours gets paths. httpx gets what can be done by hand: bytes that are read at once on the loop's
thread, headers and form made without ``files=``, and a connection for each upload, as ours has.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs

from benchmarks import _responder, _wire
from benchmarks._compare import (
    BUSY,
    CPU_EACH,
    SECONDS,
    Comparison,
    Options,
    Target,
    Task,
    compare,
)
from benchmarks._measure import Sample, allow_many_descriptors, measured_alone
from benchmarks._process import OURS, Client, Role, ours_on_other_loops

TITLE = "Batches: what they cost"
SIZE = 64 * 1024
HOLD_SECONDS = 0.5
PER_ROOM = 10
"""Documents of each room."""
NOTES = f"""\
* {PER_ROOM} documents to each room. CPU is per upload. The server is that of *small calls*.
* httpx: one AsyncClient, a semaphore, forms without `files=`; no order within a room,
  waits, retries or outcomes.
* places busy: share of the allowed concurrency with an attempt in flight, until fewer rooms than
  places have documents left."""

CLOSING = "httpx, a connection each"
NO_JOURNAL = "no journal"
WARM_UP_ROOM = "warm-up"
PATIENCE_SECONDS = 300
"""Of httpx: waiting for a connection counts as well."""


@attrs.frozen
class Job:
    """One document, to so many rooms :data:`PER_ROOM` times."""

    base_url: str
    document: str
    """Its path."""
    rooms: int
    concurrency: int
    journal: str = ""
    """Path of the journal for clients that keep one; it must be new."""

    @property
    def uploads(self) -> int:
        """Number of uploads."""
        return self.rooms * PER_ROOM

    @property
    def room_ids(self) -> Iterator[str]:
        """The room of each upload, room by room."""
        for number in range(self.rooms):
            yield from [f"room{number:04}"] * PER_ROOM


@attrs.define(eq=False)
class Occupancy:
    """A transport that passes requests on and counts how many uploads are in flight."""

    transport: Any
    places: int
    left: Counter[str] = attrs.field(factory=Counter)
    """Documents that each room has yet to accept."""
    share: float | None = None
    """Time of places with an attempt in flight, divided by that of all places, until fewer rooms
    than places had documents left; ``None`` until then."""
    attempts: int = 0
    _in_flight: int = attrs.field(default=0, init=False)
    _used: float = attrs.field(default=0.0, init=False)
    """Seconds of places."""
    _began: float = attrs.field(factory=anyio.current_time, init=False)
    _changed: float = attrs.field(factory=anyio.current_time, init=False)

    def begin(self, left: Counter[str]) -> None:
        """Forget what was before."""
        self.left, self.attempts, self.share, self._used = left, 0, None, 0.0
        self._began = self._changed = anyio.current_time()

    async def send(self, request: Any, /) -> Any:
        """Count documents; anything else is passed on as it is."""
        room = dict(request.headers).get(b"Room-Id")
        if room is None or isinstance(request.body, bytes):
            return await self.transport.send(request)
        self.attempts += 1
        self._note(+1)
        try:
            reply = await self.transport.send(request)
        finally:
            self._note(-1)
        if reply.status == 200:
            self._accepted(room.decode())
        return reply

    async def aclose(self) -> None:
        """Close what is below."""
        await self.transport.aclose()

    def _note(self, change: int) -> None:
        now = anyio.current_time()
        self._used += self._in_flight * (now - self._changed)
        self._changed = now
        self._in_flight += change

    def _accepted(self, room: str) -> None:
        self.left[room] -= 1
        if self.left[room] < 1:
            del self.left[room]
        if self.share is None and len(self.left) < self.places:
            elapsed = self._changed - self._began
            self.share = self._used / (self.places * elapsed) if elapsed else None


# --- the clients; each fresh process imports what it needs ---------------------------------------


async def _ours(job: Job) -> Sample:
    return await _batch(job)


async def _journal(job: Job) -> Sample:
    return await _batch(job, journal=job.journal)


async def _batch(job: Job, **settings: Any) -> Sample:
    """Get started with one upload, then do the batch, and see how busy its places are."""
    from meeting_async import MeetingClient, UploadJob  # noqa: PLC0415 - as above
    from meeting_async.transports import HttpTransport  # noqa: PLC0415 - as above

    transport = HttpTransport()
    places = Occupancy(transport, job.concurrency)
    async with MeetingClient(
        job.base_url,
        api_key=_wire.API_KEY,
        api_secret=_wire.API_SECRET,
        transport=places,
        max_connections=job.concurrency + 10,
    ) as client:
        await client.upload_whiteboard_file(WARM_UP_ROOM, job.document)

        async def work() -> None:
            places.begin(Counter(job.room_ids))
            names = enumerate(job.room_ids)
            jobs = [UploadJob(room, job.document, filename=f"{n}.pdf") for n, room in names]
            async with client.upload_many(jobs, concurrency=job.concurrency, **settings) as batch:
                report = await batch.wait()
            report.raise_for_failures()

        sample = await measured_alone(work, job.uploads)
    return attrs.evolve(sample, busy_share=places.share)


async def _closing(job: Job) -> Sample:
    import httpx  # noqa: PLC0415 - as above

    limits = httpx.Limits(max_connections=job.concurrency)
    url = job.base_url + _wire.UPLOAD_PATH
    async with httpx.AsyncClient(
        timeout=PATIENCE_SECONDS, trust_env=False, limits=limits
    ) as client:
        semaphore = anyio.Semaphore(job.concurrency)

        async def upload(room: str) -> None:
            async with semaphore:
                content, kind = _form(job.document)
                headers = {**_wire.upload_headers(room), "Connection": "close"}
                headers["Content-Type"] = kind
                reply = await client.post(url, content=content, headers=headers)
                reply.raise_for_status()

        async def work() -> None:
            async with anyio.create_task_group() as tasks:
                for room in job.room_ids:
                    tasks.start_soon(upload, room)

        await upload(WARM_UP_ROOM)
        return await measured_alone(work, job.uploads)


def _form(document: str) -> tuple[bytes, str]:
    """Return the form and its content type."""
    boundary = secrets.token_hex(16).encode()
    content = Path(document).read_bytes()
    form = _wire.FORM_HEAD.replace(b"--b", b"--" + boundary, 1) + content
    kind = f"multipart/form-data; boundary={boundary.decode()}"
    return form + b"\r\n--" + boundary + b"--\r\n", kind


_OURS = Client(OURS, _ours, Role.OURS)
_WITH_JOURNAL = Client("with a journal", _journal, Role.OURS)
CLIENTS = (_OURS, Client(CLOSING, _closing), *ours_on_other_loops(_OURS), _WITH_JOURNAL)


# --- the comparisons -----------------------------------------------------------------------------


def comparisons(options: Options) -> Iterator[Comparison]:
    """Compare CPU, journal and busy places."""
    allow_many_descriptors()
    rooms, places, hold = (4, 4, 0.02) if options.quick else (200, 32, HOLD_SECONDS)
    many_rooms, many_places = (10, 4) if options.quick else (1000, 128)
    with tempfile.TemporaryDirectory() as folder:
        document = _wire.make_document(Path(folder, "document.pdf"), SIZE)
        bench = _Bench(folder, str(document), options)
        yield bench.processor(rooms, places)
        yield bench.journal(rooms, places, 0.0, 1.10)
        yield bench.journal(rooms, places, hold, 1.05)
        yield bench.busy(many_rooms, many_places, hold)


@attrs.frozen
class _Bench:
    """What the clients find."""

    folder: str
    document: str
    options: Options

    def processor(self, rooms: int, places: int) -> Comparison:
        """Compare the CPU time of small uploads."""
        title = f"{PER_ROOM * rooms} uploads of 64 KiB, {places} at a time"
        task = Task(title, (CPU_EACH, SECONDS), (Target(CPU_EACH, 1.0, CLOSING),))
        clients = [client for client in CLIENTS if client is not _WITH_JOURNAL]
        return self._compared(task, self.options.chosen(clients), rooms, places, 0.0)

    def journal(self, rooms: int, places: int, hold: float, bound: float) -> Comparison:
        """Compare a batch that keeps a journal with one that keeps none."""
        server = f"a server that takes {hold:g} s" if hold else "a server that answers at once"
        title = f"{PER_ROOM * rooms} uploads of 64 KiB with a journal, {server}"
        task = Task(title, (SECONDS, CPU_EACH), (Target(SECONDS, bound, NO_JOURNAL),))
        kept = self.options.chosen([_WITH_JOURNAL])
        ours = [attrs.evolve(client, alias=_WITH_JOURNAL.name) for client in kept]
        ours[0] = attrs.evolve(ours[0], name=OURS)
        plain = attrs.evolve(_OURS, name=NO_JOURNAL, role=Role.PEER, alias=OURS)
        return self._compared(task, [*ours, plain], rooms, places, hold)

    def busy(self, rooms: int, places: int, hold: float) -> Comparison:
        """See how busy the places are."""
        title = f"{rooms} rooms x {PER_ROOM} of 64 KiB, {places} at a time, a server of {hold:g} s"
        task = Task(title, (BUSY, SECONDS, CPU_EACH), (Target(BUSY, 0.97),))
        clients = self.options.chosen([_OURS])
        return self._compared(task, clients, rooms, places, hold)

    def _compared(
        self, task: Task, clients: list[Client], rooms: int, places: int, hold: float
    ) -> Comparison:
        def sample(client: Client) -> Sample:
            with (
                tempfile.TemporaryDirectory(dir=self.folder) as folder,
                _responder.running_responder(hold) as responder,
            ):
                journal = str(Path(folder, "journal.db"))
                job = Job(responder.base_url, self.document, rooms, places, journal)
                done = client.measure(__name__, job)
                responder.check_answered(uploads=PER_ROOM * rooms + 1, rooms=rooms + 1)
            return done

        return compare(task, clients, sample, self.options.rounds)
