"""What holds for every kind of document: right bytes, at every attempt, in every room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from documents.sources import (
    KINDS,
    LARGE,
    OLD,
    SMALL,
    attempt,
    form_of,
    named,
    opened,
    prepared_document,
    sent,
    uploaded,
)
from meeting_async._documents.document import source_of
from meeting_async.errors import DocumentUnreadable
from support.interruptions import cancelled_by_scope, cancelled_natively
from support.leaks import descriptors, temporary_files, threads_idle

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

ROOMS = 8
MANY = 300_000
"""Bytes that are read in more than one call of a thread."""

MUCH = LARGE * 2
"""More than a spool keeps in memory."""


@pytest.fixture
def document_bytes(request: pytest.FixtureRequest) -> bytes:
    """Provide a large document, or a small one."""
    return {"large": LARGE, "small": SMALL}[request.param]


ALIKE = {
    *("unbuffered file", "file open for writing, too", "FastAPI", "NamedTemporaryFile"),
    "Django InMemoryUploadedFile",
}
"""Kinds that take the same way as another one."""

every_kind = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.nightly if kind in ALIKE else ())
        for kind in [*KINDS, "anyio"]
    ],
)


@every_kind
async def test_every_attempt_sends_the_rest_of_it(
    kind: str, document_bytes: bytes, tmp_path: Path
) -> None:
    """All bytes from its position on, again at a retry; nothing is open between attempts."""
    async with opened(kind, document_bytes, tmp_path) as document:
        before, stands = descriptors(), document.position()
        attempts = 1 if kind == "stream sent as it comes" else 3
        async with prepared_document(document.value) as prepared:
            for _ in range(attempts):
                async with form_of(prepared):
                    assert descriptors() <= before  # it is not opened for a wait
                assert await attempt(prepared) == document.content
                assert descriptors() <= before  # a pipe's other end may be closed by now
                assert document.position() == stands
            assert prepared.size == (None if kind == "link" else len(document.content))
            assert prepared.is_consumed is (kind == "stream sent as it comes")
        assert descriptors() <= before
        assert temporary_files() == []


@every_kind
async def test_one_object_goes_to_many_rooms_at_once(
    kind: str, document_bytes: bytes, tmp_path: Path
) -> None:
    """The right bytes in every room; of a stream, in one room, and a clear refusal elsewhere."""
    async with opened(kind, document_bytes, tmp_path) as document:
        before, stands = descriptors(), document.position()
        contents: list[bytes] = []
        refusals: list[str] = []

        async def upload() -> None:
            try:
                contents.append((await sent(named(document.value))).content)
            except DocumentUnreadable as error:
                refusals.append(error.reason)

        async with anyio.create_task_group() as group:
            for _ in range(ROOMS):
                group.start_soon(upload)
        count = 1 if document.is_stream else ROOMS
        assert contents == [document.content] * count
        assert len(refusals) == ROOMS - count
        assert all("already used" in reason and "path or bytes" in reason for reason in refusals)
        assert document.position() == stands
        assert descriptors() <= before
        assert temporary_files() == []


# --- what a source says of itself ----------------------------------------------------------------

IDENTITIES = {"path": "path", "bytes": "bytes", "link": "link"}
"""Kinds that a journal recognises in another run, and by what."""

SINGLE_USE = {
    *("pipe", "async generator", "generator", "stream, no hash, no weak references"),
    *("stream sent as it comes", "asynchronous file"),
}


@every_kind
async def test_a_source_says_what_it_is(kind: str, tmp_path: Path) -> None:
    """A journal gets size and time of a path, but not of the spool that a stream has meanwhile."""
    async with opened(kind, MUCH, tmp_path) as document:
        source = source_of(named(document.value))
        identity, version = source.identity(), f"{len(MUCH)} bytes, {OLD[0]}000000000"
        assert (identity[0] if identity else None) == IDENTITIES.get(kind)
        assert source.is_single_use is (kind in SINGLE_USE)
        assert source.held() == ((id(document.value), len(MUCH)) if kind == "bytes" else None)
        assert source.path == (str(tmp_path / "deck.pdf") if kind == "path" else None)
        found = await anyio.to_thread.run_sync(source.version)  # it blocks
        assert found == (version if kind == "path" else None)
        async with prepared_document(document.value) as prepared:
            size = None if kind == "link" else len(document.content)
            assert prepared.version == (size, version if kind == "path" else None)


# --- failures ------------------------------------------------------------------------------------


@every_kind
async def test_a_kept_error_keeps_nothing_open(kind: str, tmp_path: Path) -> None:
    """A transport fails, and the caller keeps the error with its traceback."""
    async with opened(kind, LARGE, tmp_path) as document:
        before = descriptors()
        try:
            async with prepared_document(document.value) as prepared, form_of(prepared) as body:
                for _ in range(3):
                    await anext(body, b"")
                raise ConnectionError("reset by peer")  # noqa: TRY301 - as sending does
        except ConnectionError as error:
            kept = error
        assert kept.__traceback__
        await threads_idle()
        assert descriptors() <= before
        assert temporary_files() == []


# --- cancellation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "disk"),
    [
        *[("path", "slow"), ("SpooledTemporaryFile on disk", "quick"), ("pipe", "quick")],
        *[("async generator", "quick"), ("stream sent as it comes", "quick")],
        *(
            pytest.param(kind, disk, marks=pytest.mark.nightly)
            for kind, disk in [
                *[("path", "quick"), ("open file", "slow"), ("asynchronous file", "quick")],
                *[("no hash, no weak references", "quick"), ("async generator", "slow")],
            ]
        ),
    ],
)
async def test_cancelled_at_every_wait_it_leaves_nothing(
    kind: str,
    document_bytes: bytes,
    disk: str,
    anyio_backend: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No descriptor, temporary file or moved position; the next upload sends the right bytes."""
    if disk == "slow":
        monkeypatch.delattr(
            "os.RWF_NOWAIT", raising=False
        )  # so that every chunk is read in a thread
    ways = [cancelled_by_scope, *([cancelled_natively] if anyio_backend[0] == "asyncio" else [])]
    for cancelled in ways:
        waits = 1
        while await _leaves_nothing(cancelled, waits, kind, document_bytes[:MANY], tmp_path):
            waits += 1
        assert waits > 2


async def _leaves_nothing(cancelled: Any, wait: int, kind: str, data: bytes, folder: Path) -> bool:
    async with opened(kind, data, folder) as document:
        before, stands = descriptors(), document.position()

        async def upload() -> None:
            assert await uploaded(document.value) == document.content

        was_cancelled: bool = await cancelled(upload(), wait)
        await threads_idle()
        assert descriptors() <= before
        assert temporary_files() == []
        assert document.position() == stands
        if not document.is_stream:
            assert await uploaded(document.value) == document.content
        return was_cancelled
