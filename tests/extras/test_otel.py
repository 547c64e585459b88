"""Spans and metrics of OpenTelemetry: what nests in what, what they say, and no secret in them."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import anyio
import attrs
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meeting_async import Document, Finished, MeetingClient, UploadJob, sync
from meeting_async.errors import LinkRefused, MeetingError
from meeting_async.otel import instrument
from meeting_async.testing import MeetingServer, run_in_virtual_time
from meeting_async.transports import HttpTransport, Reply, Request
from support.courses import EventRecorder
from support.documents import LARGE, SMALL
from support.fake_rooms import (
    KEY,
    SECRET,
    Act,
    FakeRooms,
    Scripted,
    absent,
    accepted,
    busy,
    client_without_checks,
    cut_off,
    hanging,
    headers_of,
    lost,
    refused,
    unreachable,
)
from support.tables import in_turn
from support.telling import logging_to

UPLOAD = "room/uploadWhiteboardFile"

Run = Callable[..., Any]


@pytest.fixture
def run(anyio_backend_name: str) -> Run:
    """Run a coroutine function on a clock that jumps."""
    return partial(run_in_virtual_time, backend=anyio_backend_name)


Client = TypeVar("Client", MeetingClient, sync.MeetingClient)


class Telemetry:
    """Collects spans and metrics in memory."""

    def __init__(self) -> None:
        self.exported, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exported))

    def watch(self, client: Client) -> Client:
        """Instrument a client."""
        instrument(client, tracer_provider=self.tracers, meter_provider=self.meters)
        return client

    def spans(self, *kinds: trace.SpanKind) -> list[ReadableSpan]:
        """The spans of some kinds, or all, in the order in which they began."""
        found = sorted(self.exported.get_finished_spans(), key=lambda span: span.start_time or 0)
        return [span for span in found if not kinds or span.kind in kinds]

    @property
    def calls(self) -> list[ReadableSpan]:
        """The spans of calls."""
        return self.spans(trace.SpanKind.INTERNAL)

    @property
    def requests(self) -> list[ReadableSpan]:
        """The spans of requests."""
        return self.spans(trace.SpanKind.CLIENT)

    def metrics(self) -> dict[str, list[Any]]:
        """Return the points of each metric."""
        data: Any = self.reader.get_metrics_data()
        scopes = data.resource_metrics[0].scope_metrics if data else []
        return {one.name: list(one.data.data_points) for scope in scopes for one in scope.metrics}

    def everything(self) -> str:
        """Return all that was exported as text."""
        data: Any = self.reader.get_metrics_data()
        return "".join(span.to_json() for span in self.spans()) + (data.to_json() if data else "")


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Collect what is exported; no test leaves a span current, or one that has not ended."""
    made = Telemetry()
    yield made
    assert trace.get_current_span() is trace.INVALID_SPAN
    made.meters.shutdown()
    made.tracers.shutdown()


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a span, an event or a metric; one name for both loops' class."""
    found = dict(of.attributes or {})
    if found.get("error.type") == "CancelledError":
        found["error.type"] = "Cancelled"
    return found


def parents(spans: list[ReadableSpan]) -> list[int | None]:
    """Return the id of each span's parent."""
    return [span.parent.span_id if span.parent else None for span in spans]


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Return the ids of a span and of its trace."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def is_error(span: ReadableSpan) -> bool:
    """Tell whether a span has the status ERROR."""
    return span.status.status_code is trace.StatusCode.ERROR


async def upload(client: MeetingClient, data: bytes = SMALL, **how: Any) -> Any:
    """Upload a document."""
    return await client.upload_whiteboard_file("room01", data, filename="deck.pdf", **how)


# --- one call ------------------------------------------------------------------------------------


@attrs.frozen
class Call:
    """A call, and its requests: the status or error of each, and its number of earlier attempts."""

    script: list[Act]
    requests: str
    verdict: str = "accepted"
    error: str | None = None
    """Class of its error."""
    events: list[str] = attrs.field(factory=list)
    """Classes of the events of its span."""
    make: Callable[[MeetingClient], Any] = upload


FREE: list[Act] = [accepted(), refused()]
CALLS = {
    "accepted": Call([accepted(replying=2), accepted(replying=5)], "200 200"),
    "waits and retries": Call(
        [
            *(unreachable(), *FREE, cut_off(), *FREE, busy(), accepted(), busy()),
            *(*FREE, cut_off(), *FREE, accepted(replying=7)),
        ],
        "ConnectFailed 200 400 ConnectionLost+1 200 400 409+2 200 409 200 400 ConnectionLost+3 "
        "200 400 200+4",
        events=["RetryScheduled"] * 2 + ["WaitingForRoom"] * 2 + ["RetryScheduled"],
        make=lambda client: upload(client, LARGE),
    ),
    "unknown": Call(
        [accepted(), lost()], "200 ConnectionLost", "unknown", "UploadOutcomeUnknown",
        make=lambda client: upload(client, timeout=5),
    ),
    "refused": Call([accepted(), absent()], "200 200", "refused", "RoomNotActive"),
    "never sent": Call(
        [], "", "never sent", "InvalidInput", make=lambda client: upload(client, timeout=-1)
    ),
    "cancelled": Call(
        [accepted(), hanging(replying=3000)], "200 Cancelled", "unknown", "_OTHER"
    ),
    "JSON": Call([accepted()], "200", make=lambda client: client.call("/room/end")),
}  # fmt: skip
FIELDS = {
    "RetryScheduled": ["attempt", "retry_in", "verdict", "reason", "limit"],
    "WaitingForRoom": ["attempt", "retry_in", "waited"],  # there is no max_wait
}
MEASURES = {
    "meeting.call.duration": "seconds",
    "meeting.call.attempts": "attempts",
    "meeting.upload.room_wait": "waited",
    "meeting.upload.bytes_sent": "bytes_sent",
    "meeting.upload.bytes_resent": "bytes_resent",
}
PLACE = {"server.address": "meet.test", "server.port": 443}


def of_request(of: Any, **more: Any) -> str:
    """Show what came of a request, of its span or metric, in the words of the table above."""
    found = attributes(of)
    status = found.pop("http.response.status_code", None)
    error = found.pop("error.type", None)
    resends = found.pop("http.request.resend_count", 0)
    assert found == {"http.request.method": "POST", **PLACE, **more}
    assert error == (str(status) if status and status >= 400 else None if status else error)
    return f"{status or error}" + (f"+{resends}" if resends else "")


class WithSpan(logging.Formatter):
    """Writes the id of the current span."""

    def format(self, _record: logging.LogRecord) -> str:
        """Write it."""
        return str(trace.get_current_span().get_span_context().span_id)


@in_turn("what", CALLS)
def test_spans_and_metrics_of_one_call(run: Run, telemetry: Telemetry, what: str) -> None:
    """A span with its events, a child for each request, of one trace; metrics for both.

    Records of the log, the last one too, are made while the span is current. No secret is exported.
    """
    expected, recorder = CALLS[what], EventRecorder()
    transport, log = Scripted(*expected.script), logging.StreamHandler(io.StringIO())
    log.setFormatter(WithSpan())
    how: Any = {"preflight": True, "default_headers": {"X-Proxy": "proxy-passw0rd"}}

    async def main() -> str | None:
        async with client_without_checks(transport, on_event=recorder, **how) as client:
            telemetry.watch(client)
            with anyio.move_on_after(3000):
                try:
                    await expected.make(client)
                except MeetingError as error:
                    return str(error)
            assert trace.get_current_span() is trace.INVALID_SPAN
        return expected.verdict if expected.error else None

    with logging_to(log):
        text = run(main)
    finished, (call,) = recorder.finished, telemetry.calls
    assert (call.name, call.parent) == (finished.operation, None)
    assert (is_error(call), call.status.description) == (bool(expected.error), text)
    facts = {
        "meeting.room_id": finished.room_id,
        "meeting.document": finished.document,
        "error.type": expected.error,
        "meeting.verdict": expected.verdict,
        "meeting.attempts": finished.attempts,
    }
    assert attributes(call) == PLACE | {k: v for k, v in facts.items() if v is not None}
    assert [event.name for event in call.events] == expected.events
    assert [attributes(event) for event in call.events] == [
        {f"meeting.{name}": getattr(event, name) for name in FIELDS[type(event).__name__]}
        for event in recorder.events
        if type(event).__name__ in FIELDS
    ]
    assert parents(telemetry.requests) == [ids(call)[1]] * len(transport.visits)
    assert {ids(span)[0] for span in telemetry.spans()} == {ids(call)[0]}
    pairs = list(zip(telemetry.requests, transport.visits, strict=True))
    urls = [of_request(span, **{"url.full": visit.request.url}) for span, visit in pairs]
    assert " ".join(urls) == expected.requests
    for span in telemetry.requests:
        assert (span.name, span.events) == ("POST", ())  # no exception is recorded
        assert is_error(span) == ("error.type" in attributes(span))
    check_metrics(telemetry.metrics(), expected, finished)
    assert set(log.stream.getvalue().split()) == {str(ids(call)[1])}
    names = ("api-key", "hash-signature")
    sent = {headers_of(visit)[name] for visit in transport.visits for name in names}
    exported = telemetry.everything()
    assert finished.operation in exported
    assert not [secret for secret in sent | {SECRET, "proxy-passw0rd"} if secret in exported]


def check_metrics(metrics: dict[str, list[Any]], expected: Call, finished: Finished) -> None:
    """Compare with the requests and the last event of a call."""
    requests = metrics.pop("http.client.request.duration", [])
    counts = Counter(request.partition("+")[0] for request in expected.requests.split())
    assert {of_request(point): point.count for point in requests} == counts
    assert all(max(point.explicit_bounds) == 300 for point in requests)
    seconds = sum(act.replying for act in expected.script)
    assert sum(point.sum for point in requests) == pytest.approx(seconds)
    is_upload = finished.operation == UPLOAD
    assert set(metrics) == {name for name in MEASURES if is_upload or "call" in name}
    for name, (point,) in metrics.items():
        assert attributes(point) == {
            "meeting.operation": finished.operation,
            "meeting.verdict": expected.verdict,
            "server.address": "meet.test",
        }
        total = point.value if "bytes" in name else point.sum
        assert total == getattr(finished, MEASURES[name])
    assert max(metrics["meeting.call.duration"][0].explicit_bounds) == 3600
    if expected.events:
        assert finished.waited > 0
        assert finished.bytes_resent == len(LARGE)


def test_no_span_shows_a_session(telemetry: Telemetry) -> None:
    """Who knows it and a name can read the document; the question for it has a span, too."""
    server = MeetingServer()
    room = server.add_room("room01")

    async def main() -> None:
        keys: dict[str, Any] = {"api_key": server.api_key, "api_secret": server.api_secret}
        with server.run() as url:
            async with MeetingClient(url, delivery="exactly_once", **keys) as client:
                telemetry.watch(client)
                assert (await upload(client)).found

    anyio.run(main)
    assert [span.name for span in telemetry.requests] == ["POST", "POST", "HEAD"]
    assert room.sid not in telemetry.everything()


# --- what is the parent of what ------------------------------------------------------------------


@pytest.mark.both_loops
def test_spans_of_the_application(run: Run, telemetry: Telemetry) -> None:
    """The application's span is the call's parent; what is made during the call is its child."""
    tracer = telemetry.tracers.get_tracer("app")

    async def slides(client: MeetingClient) -> AsyncIterator[bytes]:
        with tracer.start_as_current_span("render"):
            await client.call("room/list")
            yield SMALL

    async def main() -> None:
        async with client_without_checks(Scripted(then=lambda _: accepted())) as client:
            telemetry.watch(client)
            with tracer.start_as_current_span("lesson"):
                document = Document.from_stream(slides(client), "deck.pdf")
                await client.upload_whiteboard_file("room01", document)
                assert trace.get_current_span().name == "lesson"  # type: ignore[attr-defined]

    run(main)
    names = {ids(span)[1]: span.name for span in telemetry.spans()}
    pairs = [(span.name, span.parent and names[span.parent.span_id]) for span in telemetry.spans()]
    assert pairs == [
        *(("lesson", None), (UPLOAD, "lesson"), ("render", UPLOAD), ("room/list", "render")),
        *(("POST", "room/list"), ("POST", UPLOAD)),
    ]
    assert len({ids(span)[0] for span in telemetry.spans()}) == 1


def test_spans_of_a_thread(telemetry: Telemetry) -> None:
    """The client for threads: the span of the thread is the parent of its calls."""
    settings: Any = {"api_key": "devkey", "api_secret": "devsecret", "preflight": False}
    transport = Scripted(then=lambda _: accepted())
    client = sync.MeetingClient("http://127.0.0.1", transport=transport, **settings)
    with telemetry.tracers.get_tracer("app").start_as_current_span("lesson"):
        with telemetry.watch(client):
            client.upload_whiteboard_file("room01", SMALL, filename="deck.pdf")
    lesson, call, request = telemetry.spans()
    assert [lesson.name, call.name, request.name] == ["lesson", UPLOAD, "POST"]
    assert call.parent
    assert request.parent
    assert (call.parent.span_id, request.parent.span_id) == (ids(lesson)[1], ids(call)[1])


@pytest.mark.both_loops
@pytest.mark.parametrize("around", [True, False])
def test_spans_of_a_batch(run: Run, telemetry: Telemetry, around: bool) -> None:
    """Each job has spans of its own, below the span around the batch, whoever started its task.

    A room that is locked makes its job release its permit, which starts another job.
    """
    tracer = telemetry.tracers.get_tracer("app")
    jobs = [UploadJob(f"room{n % 5}", SMALL, filename=f"{n}.pdf", key=f"k{n}") for n in range(15)]

    async def main() -> None:
        rooms = FakeRooms(lambda visit: busy() if visit.number == 1 else accepted(replying=2))
        async with client_without_checks(rooms) as client:
            telemetry.watch(client)
            outside = trace.use_span(trace.INVALID_SPAN)
            with tracer.start_as_current_span("term") if around else outside:
                async with client.upload_many(jobs, concurrency=2) as batch:
                    await batch.wait()
            assert batch.report.accepted == 15

    run(main)
    calls = [span for span in telemetry.calls if span.name != "term"]
    terms = [ids(span)[1] for span in telemetry.calls if span.name == "term"]
    assert Counter(span.name for span in calls)[UPLOAD] == 15
    assert parents(calls) == [*terms, None][:1] * len(calls)
    assert len({ids(span)[0] for span in calls}) == (1 if around else len(calls))
    for call in calls:
        requests = [span for span in telemetry.requests if parents([span]) == [ids(call)[1]]]
        assert len(requests) == attributes(call)["meeting.attempts"]
    assert len(telemetry.requests) == sum(attributes(call)["meeting.attempts"] for call in calls)


# --- the server's side ---------------------------------------------------------------------------


def traceparents(span: ReadableSpan) -> list[str]:
    """Return the header of a sampled span (W3C Trace Context); newer SDKs say how ids are made."""
    trace_id, span_id = ids(span)
    return [f"00-{trace_id:032x}-{span_id:016x}-{flags}" for flags in ("01", "03")]


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_the_server_sees_the_trace_and_nobody_else(telemetry: Telemetry) -> None:
    """A valid ``traceparent`` with the id of the request's own span; the signature still fits.

    The check of a link is no request to the server, and no query goes into a span.
    """
    server, sent = MeetingServer(), list[Request]()
    server.add_room("room01")

    class Watched(HttpTransport):
        async def send(self, request: Request, /) -> Reply:
            sent.append(request)
            return await super().send(request)

    keys: Any = {"api_key": "devkey", "api_secret": "devsecret", "transport": Watched()}
    async with server.run() as url:
        link, gone = server.host_file("plan.pdf", SMALL), f"{url}/gone.pdf"
        token = context.attach(baggage.set_baggage("lesson", "höhere Mathematik"))
        async with MeetingClient(url, **keys, check_link=True) as client:
            await upload(telemetry.watch(client), LARGE)
            assert (await client.check()).address.status == "ok"  # of the real transport
            await client.upload_whiteboard_file("room01", Document.from_link(link))
            with pytest.raises(LinkRefused, match="HEAD"):
                await client.upload_whiteboard_file(
                    "room01", Document.from_link(f"{gone}?token=geheim#geheim")
                )
        context.detach(token)
    spans = telemetry.requests
    assert [span.name for span in spans] == ["POST"] * 6
    for request, span in zip(sent, spans, strict=True):
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        assert len(headers) == len(request.headers)
        assert headers["traceparent"] in traceparents(span)
        assert headers["baggage"].startswith("lesson=h%C3%B6here")
    assert len(server.rooms["room01"].received) == 2
    assert attributes(spans[0])["server.port"] == int(url.rpartition(":")[2])
    assert telemetry.calls[0].events == ()
    assert "geheim" not in telemetry.everything()


# --- instrument() --------------------------------------------------------------------------------


def test_it_is_independent_of_on_event(run: Run, telemetry: Telemetry) -> None:
    """A client, one made from it, and calls with an ``on_event`` of their own; each only once."""

    async def main() -> None:
        own, transport = EventRecorder(), Scripted(then=lambda _: accepted())
        async with client_without_checks(transport, on_event=own) as client:
            telemetry.watch(client)
            early = client.with_options(allow_images=True)
            telemetry.watch(client)
            late = telemetry.watch(client.with_options(on_event=None))
            for one in (client, early, late):
                await upload(one)
                await upload(one, on_event=own)
        assert len(own.of(Finished)) == 5
        assert transport.closed == 1

    run(main)
    assert len(telemetry.calls) == len(telemetry.requests) == 6
    (attempts,) = telemetry.metrics()["meeting.call.attempts"]
    assert attempts.count == 6


@pytest.mark.both_loops
def test_instrumenting_a_client_that_is_in_use(
    run: Run, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that has begun has no span of its own; its end is measured."""

    async def main() -> None:
        acts = [busy(replying=5), busy(), accepted()]
        async with (
            client_without_checks(Scripted(*acts)) as client,
            anyio.create_task_group() as group,
        ):
            group.start_soon(upload, client)
            await anyio.sleep(1)
            telemetry.watch(client)

    run(main)
    assert not telemetry.calls
    assert not caplog.records
    assert parents(telemetry.requests) == [None] * 2
    assert telemetry.metrics()["meeting.call.attempts"][0].sum == 3


def test_the_global_provider(monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry) -> None:
    """Is used unless another one is given; with the bare API nothing happens or is sent."""

    async def main() -> dict[str, str]:
        keys: Any = {"api_key": KEY, "api_secret": SECRET, "preflight": False}
        transport = Scripted(accepted())
        async with MeetingClient("https://[::1]:7", transport=transport, **keys) as client:
            instrument(client)
            await upload(client)
        return headers_of(transport.visits[0])

    assert "traceparent" not in anyio.run(main)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: telemetry.tracers)
    assert "traceparent" in anyio.run(main)
    (call,) = telemetry.calls
    assert attributes(call)["server.address"] == "::1"  # it needs no brackets


class Raising(SpanProcessor):
    """An exporter that is broken: at the begin of spans, at their end, or only of requests'."""

    def __init__(self, when: str) -> None:
        self._when = when

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._when == "begin":
            raise ValueError("broken")

    def on_end(self, span: ReadableSpan) -> None:
        if self._when == "end" or (self._when == "request" and span.kind is trace.SpanKind.CLIENT):
            raise ValueError("broken")


@in_turn("when", ["begin", "end", "request"])
def test_an_exporter_that_raises_changes_no_outcome(
    run: Run, telemetry: Telemetry, when: str
) -> None:
    """Accepted stays accepted, and nothing ends for a fault of those who watch."""

    async def main() -> None:
        telemetry.tracers.add_span_processor(Raising(when))
        async with client_without_checks(Scripted(busy(), busy(), accepted())) as client:
            telemetry.watch(client)
            assert (await upload(client)).size == len(SMALL)

    run(main)
