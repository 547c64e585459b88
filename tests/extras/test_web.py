"""``meeting_async.web``: each error has a status, and a browser sees nothing of the server.

``Uploads``: a handler that uploads outlives its request, and shutdown waits for it. Real servers
and frameworks are in ``tests/docs/test_frameworks.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import inspect
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from anyio.abc import TaskGroup
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount, Route

from extras.misdeeds_app import ALL, MISDEEDS, OF_ASYNCIO
from meeting_async import UploadReceipt, errors
from meeting_async.testing import MeetingServer, run_in_virtual_time
from meeting_async.web import Uploads, http_answer, public_detail, public_name
from support import sites
from support.command_line import until
from support.raw_http import document as form
from support.tables import LOOPS

STATUSES = {
    202: {"DocumentMisplaced", "UploadOutcomeUnknown", "UploadPutBack"},
    400: {"DocumentChanged", "DocumentUnreadable"},
    404: {"RoomNotFound"},
    409: {"RoomNotActive"},
    413: {"DocumentRefused", "DocumentTooLarge"},
    415: {"DocumentTypeRefused"},
    422: {
        "DocumentEmpty", "DocumentError", "InvalidInput", "LinkRefused", "ProcessingFailed",
        "RequestRefused", "UploadFailed",
    },
    500: {
        "AuthenticationFailed", "BatchFailed", "ConfigurationError", "JournalError",
        "JournalInUse", "MeetingError",
    },
    502: {
        "ConnectFailed", "ConnectionLost", "ReplyError", "ReplyTooLarge",
        "ServerFailed", "TransferTimeout", "TransportError",
        "UnexpectedReply", "UploadInterrupted",
    },
    503: {"BatchStopped", "ResourceExhausted", "RoomBusy", "RoomLocksUnavailable", "Throttled"},
    504: {"DeadlineExceeded"},
}  # fmt: skip
PRIVATE = ["/srv/deck.pdf", "10.0.0.5", "meet.internal", "localhost", "devsecret"]
TEXT = "as 10.0.0.5 and meet.internal say of /srv/deck.pdf on localhost with devsecret"
GENERIC = "the application could not do this"
TREE = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.MeetingError)
}


def made(kind: type[errors.MeetingError]) -> errors.MeetingError:
    """Make an error; each text in it is private."""
    values = {"int": 413, "float": 299.5, "bytes": TEXT.encode(), "tuple": (("host", TEXT),)}
    arguments = [
        next((value for name, value in values.items() if str(field.type).startswith(name)), TEXT)
        for field in (attrs.fields(kind) if attrs.has(kind) else ())
    ]
    error = kind(*arguments)
    error.room_id = error.document = error.operation = TEXT
    error.__cause__ = OSError(TEXT)
    return error


def test_every_class_has_its_status() -> None:
    """A new class of error needs a status here, and a sentence; two of them say no reason."""
    answers = {name: http_answer(made(kind)) for name, kind in TREE.items()}
    found = defaultdict(set)
    for name, answer in answers.items():
        found[answer.status].add(name)
    assert found == STATUSES
    silent = {name for name, answer in answers.items() if answer.body["detail"] == GENERIC}
    assert silent == {"MeetingError", "ConfigurationError", "AuthenticationFailed"}
    hasty = {name for name, answer in answers.items() if "Retry-After" in answer.headers}
    assert hasty == STATUSES[503]


@pytest.mark.parametrize("name", TREE)
def test_nothing_private_reaches_a_browser(name: str) -> None:
    """Whatever the error contains: no path, no host, no secret, no text of the server."""
    error = made(TREE[name])
    answer = http_answer(error)
    said = json.dumps(answer) + public_detail(error)
    assert not [private for private in PRIVATE if private in said]
    assert answer.body["error"] == name
    is_open = answer.status == 202 or name == "BatchFailed"
    assert answer.body["delivered"] is (None if is_open else False)


ANSWERS: dict[str, tuple[errors.MeetingError, dict[str, str], dict[str, object]]] = {
    # what was raised: the headers, and what the body says
    "size": (
        errors.DocumentTooLarge("deck.pdf", 31_457_281, 31_457_280), {},
        {"detail": "the document has 31,457,281 bytes, the limit is 31,457,280"},
    ),
    "argument": (
        errors.InvalidInput("room_id", TEXT, TEXT, TEXT), {},
        {"detail": "the request is not valid: room_id"},
    ),
    "changed": (
        errors.DocumentChanged("deck.pdf", "an earlier run of the batch sent it as it was"), {},
        {"detail": "the document has changed or is not whole: this version was not delivered"},
    ),
    "link": (
        errors.LinkRefused("https://10.0.0.5/deck.pdf?…", TEXT), {},
        {"detail": "the link cannot be used: it must lead directly to a public document"},
    ),
    "silent link": (
        errors.DocumentUnreadable("https://10.0.0.5/deck.pdf?…", TEXT), {},
        {"detail": "the link does not answer: try again later"},
    ),
    "file": (
        errors.DocumentUnreadable("deck.pdf", TEXT), {},
        {"detail": "the document could not be read completely"},
    ),
    "setting": (errors.ConfigurationError("path", TEXT, TEXT, TEXT), {}, {"detail": GENERIC}),
    "busy": (errors.RoomBusy(20.0, "another client", 280.0), {"Retry-After": "10"}, {}),
    "hint": (errors.Throttled(429, None, "", retry_after=2.5), {"Retry-After": "3"}, {}),
    "no hint": (errors.Throttled(429, None, "", retry_after=0.0), {"Retry-After": "0"}, {}),
    "unknown": (
        errors.UploadOutcomeUnknown("no reply", 9, 9, 299.5), {},
        {"settled_in": 300, "delivered": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_facts_that_help(what: str) -> None:
    """The size of a document, the name of an argument, when to try again: rounded up."""
    error, headers, body = ANSWERS[what]
    answer = http_answer(error)
    assert answer.headers == headers
    assert answer.body == {**answer.body, **body}


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ("déck.pdf", "déck.pdf"),
        ("what is C#?.pdf", "what is C#?.pdf"),
        ("/srv/documents/deck.pdf", "deck.pdf"),
        ("C:\\documents\\deck.pdf", "deck.pdf"),
        ("https://10.0.0.5:8443/week1/deck.pdf?…", "deck.pdf"),
        ("https://10.0.0.5", "document"),
        ("", ""),
    ],
)
def test_a_document_is_named_without_its_place(document: str, name: str) -> None:
    """Only the last part of a path or link is shown, also after success."""
    assert public_name(document) == name
    texts: dict[str, Any] = dict.fromkeys(["room_id", "msg", "status_code", "raw"], TEXT)
    receipt = UploadReceipt(document=document, size=9, seconds=1.0, attempts=(), **texts)
    body = {"delivered": True, "document": name, "size": 9}
    assert http_answer(receipt) == (200, body, {})


def test_foreign_errors_say_only_that_it_failed() -> None:
    """A class of one's own and a foreign exception say nothing but that it failed."""

    class Own(errors.MeetingError):
        pass

    body = {"delivered": False, "error": "Own", "detail": GENERIC}
    assert http_answer(Own(TEXT)) == (500, body, {})
    for error in (OSError(2, TEXT, "/srv/deck.pdf"), KeyboardInterrupt(TEXT)):
        assert public_detail(error) == GENERIC


# --- uploads that outlive their requests: a server, in virtual time -------------------------------

Message = dict[str, Any]
Answer = tuple[int, Any] | None
WHOLE = {"type": "http.request", "body": b"document"}
HALF = {"type": "http.request", "body": b"docu", "more_body": True}
REST = {"type": "http.request", "body": b"ment"}
GONE = {"type": "http.disconnect"}
START = {"type": "http.response.start", "status": 200}
BODY = {"type": "http.response.body", "body": b'{"delivered": true}'}
PATH = "/rooms/room01/documents"
GRACE, WORK = 10.0, 30.0
"""Seconds after which a server cancels a request, and those that a handler takes."""


def scope_of(**changes: Any) -> Message:
    """Describe a request as a server does."""
    headers = [(b"content-length", b"8")]
    return {"type": "http", "method": "POST", "path": PATH, "headers": headers, **changes}


class Request:
    """A request as a server makes it, in a task that the server can cancel."""

    def __init__(self, *messages: Message, **scope: Any) -> None:
        self.scope = scope_of(**scope)
        self.sent: list[Message] = []
        self.error: BaseException | None = None  # what came out of the application
        self.ended = anyio.Event()
        self.blocks = False  # nothing can be sent
        self._task: Any = anyio.CancelScope()
        self._browser, self._incoming = anyio.create_memory_object_stream[Message](9)
        self.say(*messages)

    def say(self, *messages: Message) -> None:
        """Let more of the browser arrive."""
        for message in messages:
            self._browser.send_nowait(message)

    async def run(self, app: Any, *, natively: bool = False) -> None:
        """Run the application for it. uvicorn cancels tasks of asyncio, others cancel scopes."""
        with self._task, self._browser, self._incoming:
            if natively:
                self._task = asyncio.current_task()
            try:
                await app(self.scope, self._incoming.receive, self._send)
            except Exception as error:  # noqa: BLE001 - whatever it is
                self.error = error
            except anyio.get_cancelled_exc_class() as error:
                self.error = error
                if not natively:
                    raise
            finally:
                self.ended.set()

    async def _send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()  # a socket raises here if its task is cancelled
        if self.blocks:
            await anyio.sleep_forever()
        self.sent.append(message)

    def cancel(self) -> None:
        """Cancel it, as a server does after its graceful timeout."""
        self._task.cancel()

    async def cut(self, *messages: Message) -> None:
        """Cancel it, let more of the browser arrive in the same moment, and wait for its end."""
        self.cancel()
        self.say(*messages)
        await self.ended.wait()

    def answer(self) -> Answer:
        """Return status and ``delivered``; ``None`` if there is no complete answer."""
        if len(self.sent) < 2:
            return None
        start, body = self.sent
        return start["status"], json.loads(body["body"])["delivered"]


@attrs.define(eq=False)
class Server:
    """Runs an application."""

    app: Any
    group: TaskGroup
    natively: bool
    stopped: float = 0.0
    """When the application said that its lifespan has ended."""
    has_ended: bool = False
    """Its lifespan really has."""

    def request(self, *messages: Message, **scope: Any) -> Request:
        """Begin a request."""
        request = Request(*messages, **scope)
        self.group.start_soon(partial(request.run, self.app, natively=self.natively))
        return request


@contextlib.asynccontextmanager
async def serving(app: Any, *, natively: bool = False) -> AsyncIterator[Server]:
    """Run an application with its lifespan; at the end of the block it is shut down."""
    to_app, messages = anyio.create_memory_object_stream[Message](2)
    from_app, answers = anyio.create_memory_object_stream[Message](2)

    async def put(message: Message) -> None:
        from_app.send_nowait(message)

    async def live() -> None:
        with lifespan:
            await app({"type": "lifespan"}, messages.receive, put)
            server.has_ended = True

    lifespan = anyio.CancelScope()
    with to_app, messages, from_app, answers:
        async with anyio.create_task_group() as group:
            server = Server(app, group, natively)
            group.start_soon(live)
            await to_app.send({"type": "lifespan.startup"})
            assert (await answers.receive())["type"] == "lifespan.startup.complete"
            yield server
            await to_app.send({"type": "lifespan.shutdown"})
            assert (await answers.receive())["type"] == "lifespan.shutdown.complete"
            server.stopped = anyio.current_time()
            lifespan.cancel()  # as a server's end does


Handler = Callable[[list[str], Any, Any], Awaitable[None]]


def site(handler: Handler, seen: list[str]) -> Uploads:
    """Make an application; ``seen`` is what it notices, the end of its lifespan included."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            seen.append("shutdown")
            await send({"type": "lifespan.shutdown.complete"})
            return
        try:
            await handler(seen, receive, send)
            seen.append("end")
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled")
            raise

    return Uploads(app, prefix="/rooms/")


async def read(seen: list[str], receive: Any) -> bool:
    """Read a request's body; tell whether it has come."""
    while True:
        message = await receive()
        seen.append(message["type"].removeprefix("http."))
        if not message.get("more_body", False):
            return bool(message["type"] == "http.request")


async def work(seen: list[str], receive: Any, _send: Any = None) -> None:
    """Work for a while, as an upload does; stop if the browser leaves, as frameworks do."""
    with anyio.move_on_after(WORK):
        seen.append((await receive())["type"].removeprefix("http."))


async def upload(seen: list[str], receive: Any, send: Any) -> None:
    """Read the body, work, answer."""
    if await read(seen, receive):
        await work(seen, receive)
    await send(START)
    await send(BODY)


async def ignore_body(_seen: list[str], _receive: Any, send: Any) -> None:
    """Work without a look at the body: it says nothing of what is uploaded."""
    await anyio.sleep(WORK)
    await send(START)
    await send(BODY)


async def read_as_announced(seen: list[str], receive: Any, send: Any) -> None:
    """Read as many bytes as Content-Length says, not the end of the body; work, answer."""
    seen.append((await receive())["type"].removeprefix("http."))
    await ignore_body(seen, receive, send)


async def stream(seen: list[str], receive: Any, send: Any) -> None:
    """Begin the answer at once, and tell the end later."""
    await read(seen, receive)
    await send(START)
    await work(seen, receive)
    await send(BODY)


async def answer_first(seen: list[str], receive: Any, send: Any) -> None:
    """Answer, then work: a background task of Starlette."""
    await read(seen, receive)
    await send(START)
    await send(BODY)
    await anyio.sleep(WORK)


@attrs.frozen
class Course:
    """A request, what the browser gets, and what the handler and the server notice."""

    handler: Handler
    messages: list[Message]
    answer: Answer = attrs.field(kw_only=True)
    noticed: list[str] = attrs.field(kw_only=True)
    """By the handler."""
    raised: type[Exception] | None = attrs.field(default=None, kw_only=True)
    """What the server hears."""


CUT = {
    "upload": Course(upload, [WHOLE], answer=(202, None), noticed=["request", "end"]),
    "half": Course(upload, [HALF], answer=(503, False), noticed=["request", "disconnect", "end"]),
    "nothing": Course(upload, [], answer=(503, False), noticed=["disconnect", "end"]),
    "body ignored": Course(ignore_body, [], answer=(202, None), noticed=["end"]),
    "end not read": Course(
        read_as_announced,
        [{**WHOLE, "more_body": True}],
        answer=(202, None),
        noticed=["request", "end"],
    ),
    "amid the answer": Course(stream, [WHOLE], answer=None, noticed=["request", "end"]),
    "in the background": Course(
        answer_first, [WHOLE], answer=(200, True), noticed=["request", "end"]
    ),
}
WAYS = {"asyncio": ("asyncio", False), "trio": ("trio", False), "task": ("asyncio", True)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", CUT)
def test_a_request_that_the_server_cuts(what: str, way: str) -> None:
    """It has its answer at once. Its handler goes on, and shutdown waits for it."""
    row, answer = CUT[what], CUT[what].answer
    backend, natively = WAYS[way]
    seen: list[str] = []

    async def main() -> float:
        async with serving(site(row.handler, seen), natively=natively) as server:
            request = server.request(*row.messages)
            await anyio.sleep(GRACE)
            cut_at = anyio.current_time()
            await request.cut()
            assert (anyio.current_time(), request.answer()) == (cut_at, answer)
            assert (request.error is None) == (answer is not None)
            sent = tuple(request.sent)
        assert tuple(request.sent) == sent
        assert server.has_ended
        return server.stopped - cut_at

    waited = run_in_virtual_time(main, backend=backend)
    assert seen == [*row.noticed, "shutdown"]
    assert waited == pytest.approx(0 if answer == (503, False) else WORK - GRACE)


@pytest.mark.parametrize("backend", LOOPS)
def test_a_body_that_the_browser_shall_send_again_does_not_arrive(backend: str) -> None:
    """Even if the rest of it comes in the same moment; trio decides at random what is first."""
    seen: list[str] = []

    async def main() -> Answer:
        async with serving(site(upload, seen)) as server:
            request = server.request(HALF)
            await anyio.sleep(GRACE)
            await request.cut(REST)
            return request.answer()

    found = run_in_virtual_time(main, backend=backend)
    told = {(503, False): "disconnect", (202, None): "request"}[found or (0, None)]
    assert seen == ["request", told, "end", "shutdown"]


async def refuse(seen: list[str], receive: Any, _send: Any) -> None:
    """Fail as an upload does."""
    await read(seen, receive)
    raise errors.RoomBusy(20.0, "another client", 280.0)


async def refuse_late(seen: list[str], receive: Any, send: Any) -> None:
    """Fail after the answer."""
    await upload(seen, receive, send)
    raise errors.RoomBusy(20.0, "another client", 280.0)


async def break_down(seen: list[str], receive: Any, _send: Any) -> None:
    """Fail as an application does."""
    await read(seen, receive)
    await work(seen, receive)
    raise LookupError(TEXT)


NOT_CUT = {
    "upload": Course(
        upload, [HALF, REST], answer=(200, True), noticed=["request", "request", "end"]
    ),
    "the browser leaves": Course(
        upload, [WHOLE, GONE], answer=(200, True), noticed=["request", "end"]
    ),
    "too soon": Course(
        upload, [HALF, GONE], answer=(200, True), noticed=["request", "disconnect", "end"]
    ),
    "it falls silent": Course(
        upload, [HALF], answer=(400, False), noticed=["request", "disconnect", "end"]
    ),
    "an error": Course(refuse, [WHOLE], answer=(503, False), noticed=["request"]),
    "after the answer": Course(
        refuse_late, [WHOLE], answer=(200, True), noticed=["request"], raised=errors.RoomBusy
    ),
    "another error": Course(
        break_down, [WHOLE], answer=None, noticed=["request"], raised=LookupError
    ),
}


@pytest.mark.parametrize("backend", LOOPS)
@pytest.mark.parametrize("lifespan", [True, False])
@pytest.mark.parametrize("what", NOT_CUT)
def test_a_request_runs_to_its_end(what: str, lifespan: bool, backend: str) -> None:
    """The answer is the handler's, or that of the client's error; other errors are the server's."""
    row = NOT_CUT[what]
    seen: list[str] = []

    async def main() -> None:
        app = site(row.handler, seen)
        async with serving(app) if lifespan else contextlib.nullcontext():
            request = Request(*row.messages, method="PUT")
            began = anyio.current_time()
            await request.run(app)
            seconds = {"it falls silent": 30, "too soon": 0, "an error": 0}.get(what, WORK)
            assert anyio.current_time() - began == pytest.approx(seconds)
            assert (request.answer(), seen) == (row.answer, row.noticed)
            assert type(request.error) is (row.raised or type(None))

    run_in_virtual_time(main, backend=backend)


@pytest.mark.parametrize("backend", LOOPS)
def test_an_error_after_the_request_is_logged(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else can hear of it."""

    async def main() -> None:
        async with serving(site(break_down, [])) as server:
            request = server.request(WHOLE)
            await anyio.sleep(GRACE)
            await request.cut()

    run_in_virtual_time(main, backend=backend)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info
    assert record.exc_info[0] is LookupError


@pytest.mark.parametrize("backend", LOOPS)
def test_an_error_in_the_moment_of_the_cut_is_the_servers(backend: str) -> None:
    """It is neither lost nor told as an unknown outcome."""

    async def main() -> None:
        async def break_down(_seen: list[str], receive: Any, _send: Any) -> None:
            await receive()
            requests[0].cancel()
            raise LookupError(TEXT)

        async with serving(site(break_down, [])) as server:
            requests = [server.request(WHOLE)]
            await requests[0].ended.wait()
        assert type(requests[0].error) is LookupError

    run_in_virtual_time(main, backend=backend)


async def endless(_seen: list[str], _receive: Any, _send: Any) -> None:
    """Never end."""
    await anyio.sleep_forever()


async def in_a_thread(_seen: list[str], _receive: Any, _send: Any) -> None:
    """Be busy where nobody can cancel."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(1000)


@pytest.mark.parametrize("backend", LOOPS)
@pytest.mark.parametrize(
    ("handler", "seconds", "noticed"),
    [(endless, 360, ["cancelled", "shutdown"]), (in_a_thread, 365, ["shutdown", "end"])],
)
def test_shutdown_does_not_wait_for_ever(
    handler: Handler,
    seconds: float,
    noticed: list[str],
    backend: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After ``shutdown_timeout`` handlers are cancelled; one in a thread has 5 s more."""
    seen: list[str] = []
    caplog.set_level(logging.INFO)

    async def main() -> float:
        async with serving(site(handler, seen)) as server:
            request = server.request(WHOLE)
            await anyio.sleep(GRACE)
            stop_at = anyio.current_time()
        assert request.answer() == (None if handler is in_a_thread else (202, None))
        return server.stopped - stop_at

    assert run_in_virtual_time(main, backend=backend) == pytest.approx(seconds)
    assert seen == noticed
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "shutdown waits for 1 uploading requests, at most 360 s"),
        ("WARNING", "shutdown cancels 1 uploading requests, after 360 s"),
    ]


@pytest.mark.parametrize("backend", LOOPS)
def test_a_server_that_takes_no_answer(backend: str) -> None:
    """For 5 s it is tried; then the request ends as it would without an answer."""

    async def main() -> None:
        async with serving(site(upload, [])) as server:
            request = server.request(WHOLE)
            request.blocks = True
            await anyio.sleep(GRACE)
            began = anyio.current_time()
            await request.cut()
            assert anyio.current_time() - began == pytest.approx(5)
            assert request.error

    run_in_virtual_time(main, backend=backend)


@pytest.mark.parametrize("backend", LOOPS)
def test_a_request_that_comes_too_late(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    """While shutdown waits nothing new begins; an application that is started again uploads."""
    seen: list[str] = []
    caplog.set_level(logging.INFO)
    app = site(upload, seen)

    async def main() -> None:
        async with serving(app) as server:
            server.request(WHOLE)
            await anyio.sleep(GRACE)
            server.group.start_soon(too_late, server)
        seen.clear()
        async with serving(app) as server:
            request = server.request(WHOLE)
            await request.ended.wait()
            assert request.answer() == (200, True)

    async def too_late(server: Server) -> None:
        await anyio.sleep(1)
        request = server.request(WHOLE)
        await request.ended.wait()
        assert request.answer() == (503, False)
        assert request.sent[0]["headers"][-1] == (b"retry-after", b"10")

    run_in_virtual_time(main, backend=backend)
    assert seen == ["request", "end", "shutdown"]
    assert len(caplog.records) == 1  # the second time there is nothing to wait for


@pytest.mark.parametrize(
    ("scope", "is_upload"),
    [
        ({"method": "PATCH"}, True),
        ({"root_path": "/api", "path": f"/api{PATH}"}, True),
        ({"root_path": "/"}, True),
        ({"root_path": "/room"}, True),
        ({"root_path": "/api"}, True),
        ({"root_path": "/rooms"}, False),
        ({"headers": [(b"content-length", b"9" * 5000)]}, True),
        ({"method": "GET"}, False),
        ({"path": "/roomservice"}, False),
        ({"type": "websocket"}, False),
    ],
)
def test_what_is_no_upload_is_passed_on(scope: Message, is_upload: bool) -> None:
    """POST, PUT and PATCH below the prefix are uploads, where ever the application is mounted."""
    got: list[Any] = []

    async def app(*args: Any) -> None:
        got.extend(args)

    async def main() -> Any:
        given = (scope_of(**scope), object(), object())
        uploads: Any = Uploads(app, prefix=("/decks/", "/rooms/"))
        await uploads(*given)
        return given

    assert (anyio.run(main) == tuple(got)) is not is_upload


@pytest.mark.parametrize("backend", LOOPS)
def test_an_application_in_two_event_loops(backend: str) -> None:
    """As when a test runs it in a server and in a test client: each has its own requests."""

    async def upload_quickly(seen: list[str], receive: Any, send: Any) -> None:
        await read(seen, receive)
        await anyio.sleep(0.3)
        await send(START)
        await send(BODY)

    seen: list[str] = []
    app = site(upload_quickly, seen)

    async def main() -> Answer:
        async with serving(app) as server:
            await anyio.to_thread.run_sync(other_loop)
            request = server.request(WHOLE)
            await anyio.sleep(0.1)
            await request.cut()
            return request.answer()

    def other_loop() -> None:
        run_in_virtual_time(serve, backend=backend)

    async def serve() -> None:
        async with serving(app) as server:
            await server.request(WHOLE).ended.wait()

    assert anyio.run(main, backend=backend) == (202, None)
    assert seen == ["request", "end", "shutdown"] * 2


@pytest.mark.parametrize("backend", LOOPS)
def test_a_lifespan_that_ends_by_itself(backend: str) -> None:
    """Its requests end with it: what they upload with may be closed."""
    requests: list[Request] = []

    async def app(scope: Any, *_: Any) -> None:
        await anyio.sleep(GRACE if scope["type"] == "lifespan" else WORK)

    async def main() -> float:
        uploads: Any = Uploads(app, prefix="/rooms/")
        began = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(uploads, {"type": "lifespan"}, None, None)
            await anyio.sleep(1)
            requests.append(Request())
            group.start_soon(requests[0].run, uploads)
        return anyio.current_time() - began

    assert run_in_virtual_time(main, backend=backend) == pytest.approx(GRACE)
    assert requests[0].answer() == (202, None)


def test_a_lifespan_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is the application's own; without a lifespan there is one warning."""

    async def app(scope: Any, receive: Any, _: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            raise NotImplementedError

    async def startup() -> Message:
        return {"type": "lifespan.startup"}

    async def main() -> None:
        uploads: Any = Uploads(app, prefix="/rooms/")
        with pytest.raises(NotImplementedError):
            await uploads({"type": "lifespan"}, startup, None)
        for _ in range(2):
            await Request().run(uploads)

    anyio.run(main)
    (record,) = caplog.records
    assert record.message == "no lifespan is run: uploads end with their requests"


@pytest.mark.parametrize("backend", LOOPS)
def test_an_application_that_knows_no_lifespan(backend: str) -> None:
    """Django, for example: its uploads end before shutdown does, all the same."""
    seen = list[str]()

    async def app(scope: Any, *_: Any) -> None:
        if scope["type"] == "lifespan":
            raise ValueError("only http")
        await anyio.sleep(WORK)
        seen.append("end")

    async def main() -> None:
        async with serving(Uploads(app, prefix="/rooms/")) as server:
            server.request(WHOLE)
            await anyio.sleep(WORK / 10)
        seen.append("shutdown")

    run_in_virtual_time(main, backend=backend)
    assert seen == ["end", "shutdown"]


async def pass_on(request: Any, call_next: Any) -> Any:
    """Do nothing, as a middleware of Starlette."""
    return await call_next(request)


@pytest.mark.parametrize("is_outside", [True, False])
def test_a_middleware_that_swallows_answers(is_outside: bool) -> None:
    """It is named at the start, if it is outside."""
    uploads = Middleware(Uploads, prefix="/rooms/")
    middlewares = [Middleware(BaseHTTPMiddleware, dispatch=pass_on), uploads]
    app = Starlette(middleware=middlewares if is_outside else middlewares[::-1])

    async def main() -> None:
        async with serving(app):
            pass

    expected = pytest.warns(RuntimeWarning, match="^BaseHTTPMiddleware is outside of Uploads")
    with expected if is_outside else contextlib.nullcontext():
        anyio.run(main)


@pytest.mark.parametrize("backend", LOOPS)
@pytest.mark.parametrize("misdeed", ALL)
def test_no_request_ends_another(misdeed: str, backend: str) -> None:
    """Whatever a handler does is its own error, also for the server; another upload arrives."""
    minor = int(version("anyio").split(".")[1])
    if misdeed == "leave-a-cancelled-scope-open" and minor < 15:
        pytest.skip("before 4.15 anyio cancels for ever what leaves a cancelled scope open")

    if misdeed in OF_ASYNCIO and backend == "trio":
        pytest.skip("needs a task of asyncio")
    seen: list[str] = []

    async def handler(seen: list[str], receive: Any, send: Any) -> None:
        if seen:
            await ALL[misdeed](receive, send)
        else:
            await upload(seen, receive, send)

    async def main() -> None:
        async with serving(site(handler, seen)) as server:
            request = server.request(WHOLE)
            await anyio.sleep(GRACE)
            other = server.request(WHOLE)
            await other.ended.wait()
            assert isinstance(other.error, Exception | None)
            await request.ended.wait()
            assert (request.answer(), request.error) == ((200, True), None)
            assert server.stopped == 0

    run_in_virtual_time(main, backend=backend)
    assert (seen[0], seen[-1], "end" in seen) == ("request", "shutdown", True)


SERVERS = ["uvicorn", "hypercorn", "hypercorn on trio"]
WITHOUT = "without the middleware"


@pytest.mark.nightly
@pytest.mark.parametrize("server", [*SERVERS, WITHOUT])
def test_no_request_ends_another_in_a_server(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each other upload arrives, and its browser is told so; as without the middleware."""
    meeting = MeetingServer(processing_seconds=0.2)
    told: dict[str, Any] = {}
    if server == WITHOUT:
        server = "uvicorn"
        monkeypatch.setenv("WITHOUT_UPLOADS", "1")
    with (
        meeting.run(),
        sites.serving(
            "misdeeds", meeting, tmp_path, server=server, applications=Path(__file__).parent
        ) as application,
    ):
        for misdeed in MISDEEDS if "trio" in server else ALL:
            room = meeting.add_room(misdeed)
            with application.browser() as browser, application.browser() as other:
                other.post(f"/rooms/{misdeed}/documents", form(b"%PDF-1.7"))
                until(partial(getattr, room, "accepted"))
                browser.post(f"/rooms/-/{misdeed}", b"x")
                with contextlib.suppress(ConnectionError, http.client.HTTPException):
                    browser.answer()
                status, _, body = other.answer()
            told[misdeed] = (status, body, len(room.received))
    body = {"delivered": True, "document": "deck.pdf", "size": 8}
    assert {name: it for name, it in told.items() if it != (200, body, 1)} == {}


async def endpoint(*_: Any) -> None:
    """Be where a route leads."""


DEEP = FastAPI()
ROUTER = APIRouter()
ROUTER.add_api_route("/rooms/{room_id}", endpoint, methods=["PUT"])
DEEP.include_router(ROUTER, prefix="/v1")
FLAT = Starlette(routes=[Route("/rooms/{room_id}/documents", endpoint, methods=["POST"])])
READ = Starlette(routes=[Route("/rooms/all", endpoint), Mount("/static", app=endpoint)])
BELOW = Starlette(routes=[Mount("/api", app=FLAT), Mount("/{tenant}", routes=[])])


@pytest.mark.parametrize("is_outside", [True, False])
@pytest.mark.parametrize(
    ("app", "prefix", "is_found"),
    [
        (FLAT, "/rooms/", True),
        (FLAT, "/rooms/room01/", True),
        (FLAT, "/", True),
        (FLAT, "/room/", False),
        (FLAT, "/api/rooms/", False),
        (DEEP, "/v1/rooms/", True),
        (DEEP, "/rooms/", False),
        (READ, "/rooms/", False),
        (READ, "/static/rooms/", True),
        (BELOW, "/api/rooms/", True),
        (Starlette(), "/rooms/", True),  # it may get routes later
    ],
)
def test_a_prefix_that_no_route_has(
    app: Any, prefix: str, is_found: bool, is_outside: bool
) -> None:
    """It is named at the start: no upload would outlive its request."""
    made: Any = type(app)(routes=app.routes)
    if is_outside:
        made = Uploads(made, prefix=(prefix, "/"))
    else:
        made.add_middleware(Uploads, prefix=prefix)

    async def main() -> None:
        async with serving(made):
            pass

    expected = pytest.warns(RuntimeWarning, match=f"begins with prefix '{prefix}'.*; give how")
    with contextlib.nullcontext() if is_found else expected:
        anyio.run(main)


def test_a_prefix_that_is_no_path() -> None:
    """It would match nothing, and no upload would outlive its request."""
    app: Any = None
    with pytest.raises(errors.ConfigurationError, match=r'prefix .*: give one such as "/rooms/"'):
        Uploads(app, prefix=("/decks/", "rooms/"))
