"""The pytest plugin, as a project meets it that has the package installed.

Each test runs a pytest of its own, in this process, so that coverage sees the plugin; only what
has to do with imports has a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points

import pytest
import trio.testing  # noqa: F401 - see below

# A pytest inside forgets the modules that it imports first: they would be made once per test.
import meeting_async.testing
import meeting_async.transports  # noqa: F401

Inner = Callable[..., pytest.RunResult]

PLUGINS = ("-p", "anyio", "-p", "meeting_async", "-p", "no:cacheprovider")
"""By the names of their entry points; what else is installed here may not matter."""

UPLOAD = """
async def upload(client, name="deck.pdf", **how):
    return await client.upload_whiteboard_file("room01", b"%PDF-1.7", filename=name, **how)
"""


@pytest.fixture(name="inner")
def inner_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    """Run the tests in a text; warnings are errors, and garbage tells of what was not closed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(
        "import gc, pytest\n\n"
        "@pytest.fixture(autouse=True)\ndef collect():\n    yield\n    gc.collect()\n"
    )

    def run(code: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(test_inner="import anyio, pytest\n" + UPLOAD + code)
        # It cannot rewrite the assertions of what is imported already, and would warn of it.
        return pytester.runpytest_inprocess("-W", "error", "--assert=plain", *PLUGINS, *args)

    return run


def test_users_need_not_load_it(
    inner: Inner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry point is registered, gets along with all other plugins, and can be switched off.

    One of them, pytest-asyncio, runs the test.
    """
    (found,) = entry_points(group="pytest11", name="meeting_async")
    assert found.value == "_meeting_async_pytest"
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    inner(
        """
@pytest.mark.asyncio
async def test_it(meeting_server, meeting_client):
    await meeting_client.get_active_room_info("room01")
    await upload(meeting_client)
    assert len(meeting_server.rooms["room01"].received) == 1
""",
        *("-o", "asyncio_default_fixture_loop_scope=function"),
    ).assert_outcomes(passed=1)
    off = ("-p", "no:meeting_async", "-p", "no:asyncio")
    done = pytester.runpytest_inprocess("--assert=plain", *off)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*fixture 'meeting_server' not found"])


# --- fixtures ------------------------------------------------------------------------------------

TESTS = """
import meeting_async.testing, sniffio, threading, trio.testing
from meeting_async import MeetingClient
from meeting_async.errors import DocumentRefused, RoomNotActive, UploadOutcomeUnknown

clients = []

@pytest.mark.anyio
async def test_socket(meeting_server, meeting_client):
    assert meeting_server.url.startswith("http://127.0.0.1:")
    info = await meeting_client.get_active_room_info("room01")
    assert info.joined_participants == 1
    assert (await upload(meeting_client)).status_code == "SUCCESS"
    assert [file.name for file in meeting_server.rooms["room01"].received] == ["deck.pdf"]

@pytest.mark.parametrize("number", [1, 2])
def test_each_has_its_own(meeting_server, meeting_client, number):
    assert meeting_server.requests == []
    anyio.run(upload, meeting_client)
    for client in clients:
        with pytest.raises(RuntimeError, match="closed"):
            anyio.run(upload, client)
    clients.append(meeting_client)

@pytest.mark.anyio
@pytest.mark.meeting_server(in_process=True)
async def test_in_process(meeting_server, meeting_client):
    assert "meeting-server" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(RuntimeError, match="no URL"):
        meeting_server.url
    before = anyio.current_time()
    await upload(meeting_client)
    (file,) = meeting_server.rooms["room01"].received
    assert before <= file.at <= anyio.current_time()

async def faults(meeting_server, meeting_client):
    meeting_server.refuse_next("ROOM_NOT_ACTIVE")
    meeting_server.reply_next(503, headers={"Retry-After": "5"}, when="afterwards")
    for error in (RoomNotActive, UploadOutcomeUnknown):
        with pytest.raises(error):
            await upload(meeting_client)
    assert len(meeting_server.rooms["room01"].received) == 1

test_faults = pytest.mark.anyio(faults)
test_faults_in_process = pytest.mark.anyio(pytest.mark.meeting_server(in_process=True)(faults))

class Hanging:
    def __init__(self):
        self.begun = anyio.Event()

    async def send(self, request):
        self.begun.set()
        await anyio.sleep_forever()

    async def aclose(self):
        pass

@pytest.mark.anyio
@pytest.mark.meeting_server(in_process=True)
async def test_others_hold_up_nobody(meeting_client):
    hanging = Hanging()
    keys = {"api_key": "k", "api_secret": "s"}
    async with MeetingClient("http://localhost", transport=hanging, **keys) as other:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upload, other)
            await hanging.begun.wait()
            await upload(meeting_client, timeout=5)
            tasks.cancel_scope.cancel()

@pytest.mark.meeting_server(api_key="class", max_size_whiteboard_file=7, lock_seconds=7)
class TestMarkers:
    @pytest.mark.meeting_server(rooms=["room01", "room02"], api_key="test")
    def test_all(self, meeting_server, meeting_client):
        assert list(meeting_server.rooms) == ["room01", "room02"]
        assert (meeting_server.lock_seconds, meeting_server.api_key) == (7, "test")
        with pytest.raises(DocumentRefused):
            anyio.run(upload, meeting_client)

    @pytest.mark.meeting_server(rooms=[])
    def test_no_room(self, meeting_server):
        assert (dict(meeting_server.rooms), meeting_server.api_key) == ({}, "class")

@pytest.mark.anyio
@pytest.mark.meeting_server(in_process=True, processing_seconds=300)
class TestClocksOfAnyio:
    @pytest.fixture(params=[
        ("asyncio", {"loop_factory": meeting_async.testing.VirtualTimeLoop}),
        ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}),
    ])
    def anyio_backend(self, request):
        return request.param

    async def test_it(self, meeting_client):
        assert 300 <= (await upload(meeting_client)).seconds < 340

@pytest.mark.meeting_server(processing_seconds=280)
def test_clock(meeting_server, meeting_client, in_virtual_time, anyio_backend_name):
    async def main(name):
        assert sniffio.current_async_library() == anyio_backend_name
        meeting_server.rooms["room01"].lock(20)
        return await upload(meeting_client, name)

    receipt = in_virtual_time(main, "late.pdf")
    assert 300 <= receipt.seconds < 340
    assert [file.name for file in meeting_server.rooms["room01"].received] == ["late.pdf"]
"""


def test_servers_and_clients(inner: Inner) -> None:
    """On a socket and in process, on both loops, each test with its own, with faults in one line.

    Nothing is left open, connections of JSON calls included; of the markers the closest wins. What
    another client of the event loop sends to the room of that name holds up nobody. Locks and
    conversions of minutes take no time (or there were a timeout), on the test's backend.
    """
    done = inner(TESTS, "-v", "--strict-markers")
    done.assert_outcomes(passed=18)
    done.stdout.fnmatch_lines(["*test_socket[[]asyncio[]] PASSED*", "*test_socket[[]trio[]] PASS*"])


# --- the marker ----------------------------------------------------------------------------------

WRONG_MARKERS = {
    "processing=1": "unexpected keyword argument 'processing'",
    "lock_seconds=0": "'lock_seconds' must be > 0",
    "accepted_kinds=['pdf', 'jpg']": "'accepted_kinds' must be in",
    "rooms=['a', 'a']": "there is already a room 'a'",
    "'room02'": "takes keyword arguments only, not ('room02',)",
}


def test_a_wrong_marker_is_one_clear_line(inner: Inner) -> None:
    """No traceback through the plugin."""
    tests = [
        f"@pytest.mark.meeting_server({arguments})\ndef test_{number}(meeting_server):\n    pass\n"
        for number, arguments in enumerate(WRONG_MARKERS)
    ]
    done = inner("".join(tests))
    done.assert_outcomes(errors=len(tests))
    found = {line for line in done.outlines if line.startswith("@pytest.mark.meeting_server: ")}
    assert len(found) == len(tests)
    assert all(any(problem in line for line in found) for problem in WRONG_MARKERS.values())
    assert "_meeting_async_pytest.py" not in done.stdout.str()


# --- virtual time, and what need not be there ----------------------------------------------------


def test_nothing_is_imported_for_those_who_do_not_ask(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither this package, whose coverage would suffer, nor anything that it needs."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        """
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("meeting_async")
            heavy = {"anyio", "meeting_async", "attrs", "h11", "httptools", "httpx", "trio"}
            assert not heavy & set(sys.modules)

        def test_asyncio(meeting_server, in_virtual_time):
            async def main():
                pass
            in_virtual_time(main)
            assert "trio.testing" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "meeting_async").assert_outcomes(passed=2)


HINT = 'pip install ".[testing]" in a clone'

ASKING = """
@pytest.fixture
def anyio_backend():
    return "trio"

def test_server(meeting_server): pass
def test_clock(anyio_backend, in_virtual_time): pass
def test_neither(): pass
"""


@pytest.mark.parametrize(
    ("missing", "errors", "line"),
    [
        ("python_multipart", 2, f"needs python_multipart: {HINT}"),
        ("h11", 2, f"needs h11: {HINT}"),
        ("trio.testing", 1, "in_virtual_time on trio needs trio: pip install trio"),
    ],
)
def test_what_is_missing_is_named(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, missing: str, errors: int, line: str
) -> None:
    """In one clear line, where a test asks for it; all other tests run."""
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "meeting_async.testing")  # to be imported again
    done = inner(ASKING)
    done.assert_outcomes(passed=3 - errors, errors=errors)
    told, _, _ = str(done.stdout).partition("short test summary")  # repeats it, perhaps cut
    assert sum(found.endswith(line) for found in told.splitlines()) == errors
    assert "exception" not in done.stdout.str()  # "The above exception was the direct cause of"
    assert "Traceback" not in done.stdout.str()
    assert "_meeting_async_pytest.py" not in done.stdout.str()
