"""What a large upload costs: memory and the loop's time, measured in a process of its own."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiofiles  # type: ignore[import-untyped]
import anyio
import attrs
import pytest
from starlette.datastructures import UploadFile

from _peer import sink
from meeting_async import Document, MeetingClient

MIB = 1024**2
LARGE = 300 * MIB
GROWTH_LIMIT = 16 * MIB
GAP_LIMIT = 0.020
"""Seconds for which the loop may at most stand still."""


# --- in the process that uploads -----------------------------------------------------------------


def memory(field: str) -> int:
    """Read a figure of this process in bytes: ``VmRSS`` is now, ``VmHWM`` the most since reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def slow_disk() -> None:
    """Let nothing be at hand, and every read take 50 ms of its thread."""
    pread = os.pread

    def not_at_hand(*_: Any) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def slow(fd: int, limit: int, offset: int) -> bytes:
        time.sleep(0.05)
        return pread(fd, limit, offset)

    os.preadv = not_at_hand
    os.pread = slow


@attrs.define
class Ticker:
    """Measures for how long the loop stands still."""

    gap: float = 0.0

    async def run(self) -> None:
        """Tick for ever."""
        last = time.perf_counter()
        while True:
            await anyio.sleep(0.001)
            now = time.perf_counter()
            self.gap = max(self.gap, now - last)
            last = now


class Opaque(io.FileIO):
    """A file whose class is nobody's, so that only its methods can be used."""


async def produced(path: str, size: int) -> AsyncIterator[bytes]:
    """Yield a file in items of some size."""
    async with await anyio.open_file(path, "rb") as file:
        while item := await file.read(size):
            yield item


async def hundred_megabytes_each(size: int) -> AsyncIterator[memoryview]:
    """Yield the same item over and over."""
    item = bytes(100_000_000)
    while size > 0:
        yield memoryview(item)[:size]
        size -= len(item)


async def document(kind: str, path: str) -> Any:
    """Make a document of one kind from a file."""
    size = os.stat(path).st_size  # noqa: PTH116 - before anything is measured
    name = "large.pdf"
    makers: dict[str, Callable[[], Any]] = {
        "path": lambda: path,
        "open file": lambda: open(path, "rb"),  # noqa: PTH123, SIM115 - closed with the process
        "opaque file": lambda: Opaque(path, "rb"),
        "upload": lambda: UploadFile(Opaque(path, "rb"), filename=name),
        "stream": lambda: Document.from_stream(produced(path, 1_000_000), name),
        "stream as it comes": lambda: Document.from_stream(
            produced(path, 1_000_000), name, size=size, replayable=False
        ),
        "large items": lambda: Document.from_stream(hundred_megabytes_each(size), name),
        "factory": lambda: Document.from_factory(lambda: open(path, "rb"), name),  # noqa: PTH123, SIM115
    }
    if kind == "anyio file":
        return await anyio.open_file(path, "rb")
    if kind == "aiofiles file":
        return await aiofiles.open(path, "rb")
    return makers[kind]()


async def measured(url: str, warm_up: str, path: str, is_slow: bool, kind: str) -> dict[str, float]:
    """Upload twice, a small document to load everything, then the one that counts."""
    ticker = Ticker()
    upload = await document(kind, path)
    async with (
        MeetingClient(url, api_key="key", api_secret="secret") as client,
        anyio.create_task_group() as group,
    ):
        await client.upload_whiteboard_file("room01", warm_up)
        if is_slow:
            slow_disk()
        Path("/proc/self/clear_refs").write_text("5")  # noqa: ASYNC240 - not while it is measured
        before = memory("VmRSS")
        group.start_soon(ticker.run)
        receipt = await client.upload_whiteboard_file("room01", upload)
        group.cancel_scope.cancel()
    return {
        "growth": memory("VmHWM") - before,
        "gap": ticker.gap,
        "seconds": receipt.seconds,
        "size": receipt.size or 0,
    }


# --- in the tests' process -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Run a discarding sink in a third process."""
    with sink() as url:
        yield url


def run(
    backend: str, url: str, path: Path, *, is_slow: bool = False, kind: str = "path"
) -> dict[str, float]:
    """Upload a file in a process of its own, print the figures and return them."""
    small = path.with_name("small.pdf")
    small.write_bytes(b"%PDF-1.7\n" * 1000)
    order = json.dumps([backend, url, str(small), str(path), is_slow, kind])
    done = subprocess.run(
        [sys.executable, __file__, order], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, float] = json.loads(done.stdout)
    print(  # noqa: T201 - the figures are wanted
        f"{backend}, {kind}: {figures['size'] / MIB:.0f} MiB in {figures['seconds']:.2f} s, "
        f"memory grew by {figures['growth'] / MIB:.1f} MiB, "
        f"largest gap {figures['gap'] * 1000:.1f} ms"
    )
    assert figures["size"] == path.stat().st_size
    return figures


KINDS = [
    *("path", "open file", "opaque file", "upload", "anyio file", "factory"),
    *("stream", "stream as it comes"),
]


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *[(backend, kind) for backend in ("asyncio", "trio") for kind in KINDS],
        ("asyncio", "aiofiles file"),
    ],
)
def test_memory_does_not_grow_with_the_document(
    backend: str, kind: str, url: str, tmp_path: Path
) -> None:
    """A file of 300 MiB goes out in less than 16 MiB; half as much of all else, in half of that."""
    part = 1 if kind == "path" else 2
    path = tmp_path / "large.pdf"
    path.touch()
    os.truncate(path, LARGE // part)
    assert run(backend, url, path, kind=kind)["growth"] < GROWTH_LIMIT // part


def test_large_items_are_not_copied(url: str, tmp_path: Path) -> None:
    """Items of 100 MB, which take no memory themselves: zeros that nobody wrote."""
    path = tmp_path / "large.pdf"
    path.touch()
    os.truncate(path, LARGE)
    assert run("asyncio", url, path, kind="large items")["growth"] < GROWTH_LIMIT


@pytest.mark.alone
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_slow_storage_does_not_hold_the_loop(backend: str, url: str, tmp_path: Path) -> None:
    """With 50 ms per read the loop never stands still for 20 ms."""
    path = tmp_path / "slow.pdf"
    path.write_bytes(bytes(2 * MIB))
    gaps = []
    for _ in range(10):  # another process may take the processor away: the best one counts
        figures = run(backend, url, path, is_slow=True)
        assert figures["seconds"] > 6 * 0.05
        gaps.append(figures["gap"])
        if gaps[-1] < GAP_LIMIT:
            break
    assert min(gaps) < GAP_LIMIT


if __name__ == "__main__":
    _backend, *_order = json.loads(sys.argv[1])
    print(json.dumps(anyio.run(measured, *_order, backend=_backend)))  # noqa: T201 - the result
