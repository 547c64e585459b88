"""The client for threads: the same calls, one event loop per process, no outcome that is lost."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest
import requests
import urllib3
from django.core.files.uploadedfile import (  # type: ignore[import-untyped]  # it brings no types
    SimpleUploadedFile,
)

import meeting_async
from meeting_async import Document, Queued, UploadJob, errors, sync
from meeting_async.testing import MeetingServer, Room
from support.command_line import variables
from support.interpreter import Interpreter
from support.programs import PATIENCE

PDF = b"%PDF-1.7\n" + bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def server() -> Iterator[MeetingServer]:
    """Run a meeting server."""
    server = MeetingServer()
    server.add_room("room01")
    with server.run():
        yield server


@pytest.fixture
def client(server: MeetingServer) -> Iterator[sync.MeetingClient]:
    """Make a client."""
    with sync.MeetingClient.from_env(variables(server)) as client:
        yield client


NUMBERS = iter(range(1, 10_000))


@pytest.fixture
def room(server: MeetingServer) -> Room:
    """Open a room for one test."""
    return server.add_room(f"room{next(NUMBERS)}")


# --- the same client -----------------------------------------------------------------------------

RENAMED = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
PAIRS = [
    (meeting_async.MeetingClient, sync.MeetingClient),
    (meeting_async.Batch, sync.Batch),
]
ONLY_ASYNC = {"__aiter__", "__await__", "__enter__", "__exit__"}


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class, and those that make and use it."""
    special = {"__init__", *RENAMED, *RENAMED.values()}
    return {
        name: value
        for name, value in inspect.getmembers(kind, callable)
        if not name.startswith("_") or name in special
    }


def described(method: Callable[..., Any]) -> tuple[str, str]:
    """Return the parameters of a method, and the name of what it returns."""
    signature = inspect.signature(method)
    result = signature.return_annotation
    empty = signature.replace(return_annotation=inspect.Signature.empty)
    return str(empty), getattr(result, "__name__", result)


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=["client", "batch"])
def test_signatures_are_those_of_the_async_client(theirs: type, ours: type) -> None:
    """The same methods with the same parameters and results, whatever is added."""
    found = methods(ours)
    for name, method in methods(theirs).items():
        if name in ONLY_ASYNC or (ours is sync.Batch and name == "__init__"):
            continue
        twin = found[RENAMED.get(name, name)]
        assert not inspect.iscoroutinefunction(twin)
        assert name.startswith("__") or inspect.getdoc(twin), name
        if name != "__aexit__":
            assert described(twin) == described(method), name
    extra = found.keys() - {RENAMED.get(name, name) for name in methods(theirs)}
    assert extra <= {"__iter__"}


def test_every_call(client: sync.MeetingClient, room: Room) -> None:
    """Values and errors are those of the async client."""
    receipt = client.upload_whiteboard_file(room.room_id, PDF, filename="deck.pdf")
    assert (receipt.document, receipt.size) == ("deck.pdf", len(PDF))
    assert client.get_active_room_info(room.room_id).room_id == room.room_id
    assert client.wait_until_active(room.room_id, 5).is_running
    assert client.call("room/getActiveRoomInfo", {"room_id": room.room_id})["status"] is True
    assert client.check(room.room_id).ok
    with pytest.raises(errors.RoomNotFound) as caught:
        client.get_active_room_info("nowhere")
    assert caught.value.room_id == "nowhere"
    small = client.with_options(max_size_whiteboard_file=10)
    with pytest.raises(errors.DocumentTooLarge):
        small.upload_whiteboard_file(room.room_id, PDF, filename="deck.pdf")
    small.close()  # the original stays open
    assert client.get_active_room_info(room.room_id).is_running
    client.close()
    assert "closed" in repr(client)
    with pytest.raises(RuntimeError, match="closed"):
        client.check()


def test_a_setting_that_is_refused_shows_no_secret() -> None:
    """The error is that of the async client, also in a traceback with locals."""
    import rich.console
    import rich.traceback

    settings: Any = {"api_key": "devkey", "api_secret": "very-secret", "timeot": 3}
    makes: list[Callable[..., object]] = [sync.MeetingClient, sync.MeetingClient.from_env]
    for make in makes:
        with pytest.raises(errors.ConfigurationError, match="timeout") as caught:
            make(base_url="http://127.0.0.1", **settings)
        shown = rich.traceback.Traceback.from_exception(
            caught.type, caught.value, caught.tb.tb_next, show_locals=True
        )
        console = rich.console.Console(file=io.StringIO(), width=200)
        console.print(shown)
        assert "very-secret" not in console.file.getvalue()  # type: ignore[attr-defined]


async def _chunks() -> AsyncIterator[bytes]:
    for start in range(0, len(PDF), 1000):
        yield PDF[start : start + 1000]


def _requests(url: str) -> Any:
    return requests.get(url, stream=True, timeout=PATIENCE).raw


SOURCES: dict[str, Callable[[Path, str], Any]] = {
    "path": lambda path, _: path,
    "file": lambda path, _: path.open("rb"),
    "Django": lambda _path, _: SimpleUploadedFile("deck.pdf", PDF),
    "generator": lambda *_: (PDF[start : start + 1000] for start in range(0, len(PDF), 1000)),
    "async generator": lambda *_: _chunks(),
    "requests": lambda _, url: _requests(url),
    "requests, decoded": lambda _, url: requests.get(url, timeout=PATIENCE).iter_content(10_000),
    "urllib3": lambda _, url: urllib3.request("GET", url, preload_content=False),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source(
    client: sync.MeetingClient, room: Room, server: MeetingServer, kind: str, tmp_path: Path
) -> None:
    """What threads hold in their hands is uploaded byte for byte."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    document = SOURCES[kind](path, server.host_file("deck.pdf", PDF))
    client.upload_whiteboard_file(room.room_id, document, filename="deck.pdf")
    assert [file.size for file in room.received] == [len(PDF)]
    close = getattr(document, "close", lambda: None)
    close()


# --- threads -------------------------------------------------------------------------------------


def test_a_hundred_threads(client: sync.MeetingClient, room: Room) -> None:
    """One client serves all, in one thread; in a room first come is first served."""
    room.lock()
    lined_up, earlier = threading.Semaphore(0), {*threading.enumerate()}

    def upload(number: int) -> None:
        def seen(event: meeting_async.Event) -> None:
            if isinstance(event, Queued if number else meeting_async.WaitingForRoom):
                lined_up.release()

        client.upload_whiteboard_file(
            room.room_id, b"%PDF-1.7", filename=f"{number}.pdf", on_event=seen
        )

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
        assert lined_up.acquire(timeout=PATIENCE)
    mine = {thread for thread in threading.enumerate() if thread.name == "meeting-async"}
    room.unlock()
    for thread in threads:
        thread.join(PATIENCE)
    assert [file.name for file in room.received] == [f"{number}.pdf" for number in range(100)]
    # The event loop's, and those that read documents: none for each call.
    assert len(mine - earlier) < 50


def test_a_thread_with_an_event_loop_is_refused(client: sync.MeetingClient, room: Room) -> None:
    """The error names the async client, on asyncio and trio, and in the client's own loop."""
    seen: list[BaseException] = []

    async def call() -> None:
        with pytest.raises(RuntimeError, match=r"use meeting_async\.MeetingClient here, with"):
            client.get_active_room_info(room.room_id)

    def event(_: object) -> None:
        try:
            client.get_active_room_info(room.room_id)
        except RuntimeError as error:
            seen.append(error)

    for backend in ("asyncio", "trio"):
        anyio.run(call, backend=backend)

    async def call_back() -> None:
        asyncio.get_running_loop().call_soon(event, None)
        await asyncio.sleep(0)

    asyncio.run(call_back())
    assert len(seen) == 1
    client.get_active_room_info(room.room_id, on_event=event)
    assert len(seen) > 1
    asyncio.run(asyncio.to_thread(client.get_active_room_info, room.room_id))


# --- many uploads --------------------------------------------------------------------------------


def jobs(room: Room, count: int, read: list[threading.Thread]) -> Iterator[UploadJob]:
    """Yield jobs, and note which thread has read them."""
    try:
        for number in range(count):
            read.append(threading.current_thread())
            yield UploadJob(room.room_id, Document.from_bytes(b"%PDF-1.7", f"{number}.pdf"))
    finally:
        read.append(threading.current_thread())


def test_a_batch_in_a_thread(client: sync.MeetingClient, room: Room) -> None:
    """``with`` and ``for``; a generator runs in the thread that waits, as a plain ``for`` does."""
    read: list[threading.Thread] = []
    with client.upload_many(jobs(room, 20, read)) as batch:
        names = [outcome.document for outcome in batch]
    assert names == [f"{number}.pdf" for number in range(20)]
    assert read == [threading.current_thread()] * 21
    assert (batch.report.accepted, batch.report.total) == (20, 20)
    with client.upload_many(jobs=list(jobs(room, 3, []))) as batch:
        assert batch.wait().accepted == 3
    with pytest.raises(RuntimeError, match="once"), batch:
        pass


def test_several_threads_share_a_batch(client: sync.MeetingClient, room: Room) -> None:
    """Each outcome goes to one of them, whichever of them reads the jobs."""
    taken: list[Any] = []
    with client.upload_many(jobs(room, 50, [])) as batch:
        threads = [threading.Thread(target=lambda: taken.extend(batch)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert sorted(outcome.index for outcome in taken) == list(range(50))


def test_a_batch_that_is_left(client: sync.MeetingClient, room: Room) -> None:
    """An exception in the block is raised unchanged, ends running uploads, and closes the jobs."""
    room.lock()
    read: list[threading.Thread] = []
    start = time.monotonic()
    batch = client.upload_many(jobs(room, 10, read), window=2)

    def leave() -> None:
        with batch:
            threading.Timer(0.5, batch.stop).start()
            for _ in batch:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    room.unlock()
    assert time.monotonic() - start < PATIENCE
    assert batch.report.accepted == 0
    assert len(read) < 11
    assert inspect.getgeneratorstate(batch._waiting._items) == "GEN_CLOSED"


def test_a_generator_of_jobs_that_raises(client: sync.MeetingClient, room: Room) -> None:
    """An exception of the generator is raised when the jobs that it gave have ended."""

    def failing() -> Iterator[UploadJob]:
        yield from jobs(room, 2, [])
        raise ZeroDivisionError

    batch = client.upload_many(failing())
    with pytest.raises(ZeroDivisionError), batch:
        pass
    assert batch.report.accepted == 2
    with pytest.raises(TypeError, match="jobs must be"):
        client.upload_many(17)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInput, match="concurrency"):
        client.upload_many([], concurrency=0)


# --- interruptions -------------------------------------------------------------------------------

PRELUDE = """
import ctypes, logging, os, signal, sys, threading, time
from meeting_async import UploadJob
from meeting_async.sync import MeetingClient
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(action)s %(message)s")
for quiet in ("asyncio", "httpx"):
    logging.getLogger(quiet).disabled = True
logging.getLogger("meeting_async").addFilter(lambda record: record.action == "sync")
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what runs in the background
client = MeetingClient.from_env()

def interrupt_when_sent(how):
    def seen(event):
        if type(event).__name__ == "BytesSent" and event.sent == event.total:
            threading.Timer(0.3, how).start()
    return seen

def upload(how, **options):
    return client.upload_whiteboard_file(
        "room01", b"%PDF-1.7", filename="deck.pdf", on_event=interrupt_when_sent(how), **options)
"""


@attrs.frozen
class Interruption:
    """What ends a call, by what program, and what the program prints."""

    program: str
    seen: str


BY_SIGNAL = "lambda: os.kill(os.getpid(), signal.{})"
INTERRUPTIONS = {
    "Ctrl-C": Interruption(
        f"""
        try: upload({BY_SIGNAL.format("SIGINT")})
        except KeyboardInterrupt as error: print(type(error).__name__, error.__notes__)
        """,
        "KeyboardInterrupt",
    ),
    "a handler that raises": Interruption(
        f"""
        class SoftLimit(Exception): pass
        def handler(*_): raise SoftLimit
        signal.signal(signal.SIGUSR1, handler)
        try: upload({BY_SIGNAL.format("SIGUSR1")})
        except SoftLimit as error: print(type(error).__name__, error.__notes__)
        """,
        "SoftLimit",
    ),
    "SIGTERM": Interruption(
        f"""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try: upload({BY_SIGNAL.format("SIGTERM")})
        except SystemExit as error: print(type(error).__name__, error.__notes__); raise
        """,
        "SystemExit",
    ),
    "raised in a thread": Interruption(
        """
        class TimeLimit(BaseException): pass
        me = ctypes.c_ulong(threading.get_ident())
        raised = lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(TimeLimit))
        try: upload(raised)
        except TimeLimit as error: print(type(error).__name__, error.__notes__)
        """,
        "TimeLimit",
    ),
}
NOTE = "'deck.pdf' may have arrived in room 'room01': look into the room before sending it again"


def dedented(program: str) -> str:
    """Return a program without the indentation that it has here."""
    return PRELUDE + inspect.cleandoc(program)


def run(python: Interpreter, program: str, meeting: MeetingServer, folder: Path) -> tuple[str, str]:
    """Run a program, which must succeed; return what it prints and logs."""
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), **variables(meeting)}
    status, stdout, stderr = python.run(dedented(program), folder, environment)
    assert status == 0, stderr
    return stdout, stderr


@pytest.fixture
def slow() -> Iterator[MeetingServer]:
    """Run a server that converts for 3 s."""
    server = MeetingServer(processing_seconds=3)
    server.add_room("room01")
    with server.run():
        yield server


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_what_interrupts_a_call_says_what_is_known(
    python: Interpreter, slow: MeetingServer, tmp_path: Path, how: str
) -> None:
    """As a cancellation does: by a note on the exception, and in the log."""
    interruption = INTERRUPTIONS[how]
    stdout, stderr = run(python, interruption.program, slow, tmp_path)
    assert stdout == f"{interruption.seen} {[NOTE]!r}\n"
    assert stderr == f"WARNING sync {interruption.seen} has ended a call: {NOTE}\n"


def test_an_interrupted_batch_counts_what_may_have_arrived(
    python: Interpreter, slow: MeetingServer, tmp_path: Path
) -> None:
    """Ctrl-C amid a ``for``: the uploads end, and the report says what is known."""
    program = f"""
    how = {BY_SIGNAL.format("SIGINT")}
    jobs = (UploadJob("room01", b"%PDF-1.7", filename=f"{{n}}.pdf") for n in range(3))
    try:
        with client.upload_many(jobs, on_event=interrupt_when_sent(how)) as batch:
            for outcome in batch: print(outcome.status)
    except KeyboardInterrupt as error: print(error.__notes__, batch.report.unknown)
    """
    stdout, _ = run(python, program, slow, tmp_path)
    assert stdout == "['1 of its documents may have arrived: see batch.report'] 1\n"


# --- the end of a program ------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [60, 0.5])
def test_what_runs_at_exit_is_waited_for(
    python: Interpreter, slow: MeetingServer, tmp_path: Path, limit: float
) -> None:
    """A daemon thread gets its answer, or, at the limit, the log says what is known."""
    program = f"""
    from meeting_async import _blocking
    _blocking.EXIT_SECONDS = {limit}
    sent = threading.Event()
    thread = threading.Thread(target=upload, args=(sent.set,), daemon=True)
    thread.start()
    sent.wait()
    """
    _, stderr = run(python, program, slow, tmp_path)
    first, *rest = stderr.splitlines()
    assert first.startswith("WARNING sync the program ends, and waits for 1 calls")
    if limit > 3:
        assert rest == []
        assert len(slow.rooms["room01"].accepted) == 1
    else:
        # The thread may print its own error in between, and is ended amid that.
        assert f"WARNING sync SystemExit has ended a call: {NOTE}\n" in stderr


def test_a_program_that_closes_nothing_ends_quietly(
    python: Interpreter, server: MeetingServer, tmp_path: Path
) -> None:
    """Warnings are errors here, and threads end: a module-level client needs no ``close``."""
    program = 'print(client.get_active_room_info("room01").room_id)'
    assert run(python, program, server, tmp_path) == ("room01\n", "")


# --- forks ---------------------------------------------------------------------------------------

FORKS = """
import multiprocessing, pickle
def child(number):
    client.upload_whiteboard_file("room01", b"%PDF-1.7", filename=f"{number}.pdf")
    client.get_active_room_info("room01")

if __name__ == "__main__":
    client.get_active_room_info("room01")
    context = multiprocessing.get_context(sys.argv[1])
    processes = [context.Process(target=child, args=(number,)) for number in range(3)]
    for process in processes: process.start()
    client.upload_whiteboard_file("room01", b"%PDF-1.7", filename="parent.pdf")
    for process in processes: process.join()
    print([process.exitcode for process in processes])
    client.get_active_room_info("room01")
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_every_process_has_a_loop_of_its_own(
    server: MeetingServer, tmp_path: Path, method: str
) -> None:
    """An inherited client works in the child, on connections of its own, and in the parent."""
    from support.programs import run_to_its_end

    (tmp_path / "program.py").write_text(PRELUDE + FORKS)
    room = server.rooms["room01"]
    before = len(room.received)
    quiet = ["-W", "ignore:This process:DeprecationWarning"]  # it has threads: that is the point
    command = [sys.executable, *quiet, str(tmp_path / "program.py"), method]
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), **variables(server)}
    assert run_to_its_end(command, tmp_path, environment) == "[0, 0, 0]\n"
    names = sorted(file.name for file in room.received[before:])
    assert names == ["0.pdf", "1.pdf", "2.pdf", "parent.pdf"]


def test_a_fork_amid_an_upload(python: Interpreter, slow: MeetingServer, tmp_path: Path) -> None:
    """The parent's upload gets its answer; the child uploads, too, and holds no socket of it."""
    program = """
    sent, results = threading.Event(), []
    thread = threading.Thread(target=lambda: results.append(upload(sent.set)))
    thread.start()
    sent.wait()
    if os.fork() == 0:
        status = client.with_options(timeout=30).upload_whiteboard_file(
            "room01", b"%PDF-1.7", filename="child.pdf").status_code
        os._exit(status != "SUCCESS")
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    thread.join()
    print(results[0].document)
    """
    assert run(python, program, slow, tmp_path)[0] == "0\ndeck.pdf\n"
    assert [file.name for file in slow.rooms["room01"].accepted] == ["deck.pdf", "child.pdf"]


# --- others' threads -----------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ("import gevent.monkey; gevent.monkey.patch_all()", "gevent"),
        ("import eventlet; eventlet.monkey_patch()", "eventlet"),
    ],
)
def test_green_threads_are_refused(
    server: MeetingServer, tmp_path: Path, patch: str, name: str
) -> None:
    """The first call says what to do instead."""
    from support.programs import run_to_its_end

    program = f"""
{patch}
from meeting_async.sync import MeetingClient
client = MeetingClient.from_env()
try: client.check()
except RuntimeError as error: print(error)
"""
    environment = {"PYTHONPATH": ":".join(filter(None, sys.path)), **variables(server)}
    environment["EVENTLET_NO_GREENDNS"] = "yes"  # its own resolver breaks other packages
    printed = run_to_its_end([sys.executable, "-c", program], tmp_path, environment)
    assert printed.startswith(f"{name} has replaced threads and sockets")
    assert "--pool prefork" in printed


# --- notebooks and consoles ----------------------------------------------------------------------

AWAITED = """
from meeting_async import MeetingClient
client = MeetingClient.from_env()
receipt = await client.upload_whiteboard_file("room01", b"%PDF-1.7", filename="awaited.pdf")
print(receipt.document)
await client.aclose()
"""
BLOCKING = """
from meeting_async.sync import MeetingClient
with MeetingClient.from_env() as client:
    receipt = client.upload_whiteboard_file("room01", b"%PDF-1.7", filename="blocking.pdf")
    print(receipt.document)

"""
INTERRUPTED = """
import os, signal, threading
def stop(event):
    if type(event).__name__ == "BytesSent":
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
client = MeetingClient.from_env()
client.upload_whiteboard_file("room01", b"%PDF-1.7", filename="deck.pdf", on_event=stop)
"""


@pytest.mark.nightly
def test_a_notebook(slow: MeetingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell awaits the async client, or blocks; *interrupt* tells what is known."""
    from jupyter_client.manager import start_new_kernel

    for name, value in {**variables(slow), "IPYTHONDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    printed: list[str] = []

    def output(message: Any) -> None:
        content = message["content"]
        printed.extend([content.get("text", ""), *content.get("traceback", [])])

    manager, kernel = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        for cell in (AWAITED, BLOCKING, INTERRUPTED):
            kernel.execute_interactive(cell, timeout=PATIENCE, output_hook=output)
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel(now=True)
    text = "".join(printed)
    assert "awaited.pdf\nblocking.pdf\n" in text
    assert "KeyboardInterrupt" in text
    assert NOTE in text


@pytest.mark.nightly
@pytest.mark.parametrize("console", ["IPython", "asyncio"])
def test_an_async_console(server: MeetingServer, tmp_path: Path, console: str) -> None:
    """``await`` at the top level; the client for threads works in IPython, else the error helps."""
    environment = {**os.environ, **variables(server), "IPYTHONDIR": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", console],
        input=AWAITED + BLOCKING,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "awaited.pdf" in done.stdout
    if console == "IPython":
        assert "blocking.pdf" in done.stdout
    else:
        assert "use meeting_async.MeetingClient here, with `await`" in done.stderr
