"""Spans and metrics of OpenTelemetry: what nests in what, what they say, and no secret in them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import attrs
import httpx
import pytest
from opentelemetry import baggage, context, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meeting_async import Document, Finished, MeetingClient, UploadJob
from meeting_async.errors import (
    InvalidInput,
    LinkRefused,
    MeetingError,
    RoomNotActive,
    UploadOutcomeUnknown,
)
from meeting_async.otel import instrument
from meeting_async.testing import MeetingServer, run_in_virtual_time
from meeting_async.transports import HttpxTransport, Transport
from support.fake_rooms import (
    FakeRooms,
    absent,
    accepted,
    busy,
    cut_off,
    hanging,
    lost,
    refused,
    unreachable,
)
from support.fakes import KEY, LARGE, PDF, SECRET, EventRecorder, Scripted, client_of, headers_of
from support.telling import logging_to

UPLOAD, INFO = "room/uploadWhiteboardFile", "room/getActiveRoomInfo"
CALL_METRICS = {"meeting.call.duration", "meeting.call.attempts"}
UPLOAD_METRICS = {f"meeting.upload.{name}" for name in ("bytes_sent", "bytes_resent", "room_wait")}

Run = Callable[..., Any]


@pytest.fixture
def run(anyio_backend_name: str) -> Run:
    """Run a coroutine function on a clock that jumps."""
    return partial(run_in_virtual_time, backend=anyio_backend_name)


@attrs.define(eq=False)
class Telemetry:
    """Collects spans and metrics in memory."""

    spans: InMemorySpanExporter = attrs.field(factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = attrs.field(factory=InMemoryMetricReader)
    tracers: TracerProvider = attrs.field(init=False)
    meters: MeterProvider = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider([self.reader])

    def watch(self, client: MeetingClient) -> MeetingClient:
        """Instrument a client."""
        instrument(client, tracer_provider=self.tracers, meter_provider=self.meters)
        return client

    @property
    def ended(self) -> list[ReadableSpan]:
        """All spans, in the order in which they began."""
        return sorted(self.spans.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def calls(self) -> list[ReadableSpan]:
        """The spans of calls."""
        return [span for span in self.ended if span.kind is trace.SpanKind.INTERNAL]

    @property
    def requests(self) -> list[ReadableSpan]:
        """The spans of requests."""
        return [span for span in self.ended if span.kind is trace.SpanKind.CLIENT]

    def metrics(self) -> dict[str, list[Any]]:
        """Return the points of each metric."""
        data: Any = self.reader.get_metrics_data()
        if data is None:
            return {}
        (scope,) = data.resource_metrics[0].scope_metrics
        return {metric.name: list(metric.data.data_points) for metric in scope.metrics}

    def everything(self) -> str:
        """Return all that was exported as text."""
        data: Any = self.reader.get_metrics_data()
        spans = "".join(span.to_json() for span in self.ended)
        return spans + (data.to_json() if data else "")


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Collect what is exported; no test leaves a span current, or one that has not ended."""
    made = Telemetry()
    yield made
    assert trace.get_current_span() is trace.INVALID_SPAN
    made.meters.shutdown()
    made.tracers.shutdown()


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a span or of one of its events."""
    return dict(of.attributes or {})


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


async def upload(client: MeetingClient, data: bytes = PDF, **how: Any) -> Any:
    """Upload a document."""
    return await client.upload_whiteboard_file("room01", data, filename="deck.pdf", **how)


# --- one call ------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_an_accepted_upload(telemetry: Telemetry) -> None:
    """A span for the call and one for each request, of one trace; metrics for both."""
    server = MeetingServer()
    server.add_room("room01")
    async with server.run() as url:
        port = int(url.rpartition(":")[2])
        async with MeetingClient(url, api_key="devkey", api_secret="devsecret") as client:
            await upload(telemetry.watch(client))
    (call,) = telemetry.calls
    assert (call.name, is_error(call), call.parent, call.events) == (UPLOAD, False, None, ())
    place = {"server.address": "127.0.0.1", "server.port": port}
    assert attributes(call) == {
        "meeting.room_id": "room01",
        "meeting.document": "deck.pdf",
        "meeting.verdict": "accepted",
        "meeting.attempts": 1,
        **place,
    }
    check, sent = telemetry.requests
    assert parents([check, sent]) == [ids(call)[1]] * 2
    assert {ids(span)[0] for span in telemetry.ended} == {ids(call)[0]}
    for span, path in ((check, INFO), (sent, UPLOAD)):
        assert (span.name, is_error(span)) == ("POST", False)
        assert attributes(span) == {
            "http.request.method": "POST",
            "url.full": f"{url}/auth/{path}",
            "http.response.status_code": 200,
            **place,
        }
    metrics = telemetry.metrics()
    assert set(metrics) == CALL_METRICS | UPLOAD_METRICS | {"http.client.request.duration"}
    (point,) = metrics.pop("http.client.request.duration")
    assert point.count == 2
    assert point.sum == pytest.approx(
        sum(((span.end_time or 0) - (span.start_time or 0)) / 1e9 for span in telemetry.requests),
        rel=0.5,
    )
    assert dict(point.attributes) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        **place,
    }
    assert max(point.explicit_bounds) == 300
    for (point,) in metrics.values():
        assert dict(point.attributes) == {
            "meeting.operation": UPLOAD,
            "meeting.verdict": "accepted",
            "server.address": "127.0.0.1",
        }
    assert metrics["meeting.upload.bytes_sent"][0].value == len(PDF)
    assert metrics["meeting.upload.bytes_resent"][0].value == 0
    assert metrics["meeting.call.attempts"][0].sum == 1
    assert max(metrics["meeting.call.duration"][0].explicit_bounds) == 3600


@pytest.mark.both_loops
def test_waits_and_retries(run: Run, telemetry: Telemetry) -> None:
    """They are events of the call's span, and metrics; requests, its children, count resends."""

    async def main() -> None:
        free = [accepted(), refused()]
        script = [unreachable(), *free, cut_off(), *free, busy(), accepted(), busy(), *free]
        script += [cut_off(), *free, accepted()]
        async with client_of(Scripted(*script), preflight=True, on_event=recorder) as client:
            await upload(telemetry.watch(client), LARGE)

    recorder = EventRecorder()
    run(main)
    (call,) = telemetry.calls
    events = [(event.name, attributes(event)) for event in call.events]
    names = ["RetryScheduled"] * 2 + ["WaitingForRoom"] * 2 + ["RetryScheduled"]
    assert [name for name, _ in events] == names
    verdicts = [facts.get("meeting.verdict") for _, facts in events]
    assert verdicts == ["never sent", "partial", None, None, "partial"]
    assert "refused" in events[0][1]["meeting.reason"]
    waits = [facts for name, facts in events if name == "WaitingForRoom"]
    names = ["meeting.attempt", "meeting.retry_in", "meeting.waited"]
    assert sorted(waits[0]) == names  # there is no max_wait
    assert (waits[0]["meeting.attempt"], waits[0]["meeting.waited"]) == (3, 0)
    assert 0 < waits[0]["meeting.retry_in"] < 1
    requests = telemetry.requests
    assert parents(requests) == [ids(call)[1]] * len(requests)
    spans = [attributes(span) for span in requests]
    errors = [one.get("error.type") for one in spans]
    assert [is_error(span) for span in requests] == [bool(error) for error in errors]
    free = [(None, None), ("400", None)]
    assert [(one.get("error.type"), one.get("http.request.resend_count")) for one in spans] == [
        ("ConnectFailed", None),
        *free, ("ConnectionLost", 1),
        *free, ("409", 2), (None, None), ("409", None),
        *free, ("ConnectionLost", 3),
        *free, (None, 4),
    ]  # fmt: skip
    metrics = telemetry.metrics()
    (waited,) = metrics["meeting.upload.room_wait"]
    assert 0 < waited.sum == recorder.finished.waited < recorder.finished.seconds
    assert metrics["meeting.upload.bytes_resent"][0].value == len(LARGE)
    counts: Counter[int | None] = Counter()
    for point in metrics["http.client.request.duration"]:
        counts[point.attributes.get("http.response.status_code")] += point.count
    assert counts == {None: 3, 200: 6, 400: 4, 409: 2}


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("script", "error", "verdict", "request_error"),
    [
        ([lost()], UploadOutcomeUnknown, "unknown", "ConnectionLost"),
        ([absent()], RoomNotActive, "refused", None),
        ([], InvalidInput, "never sent", None),
    ],
)
def test_a_call_that_fails(
    run: Run, telemetry: Telemetry, script: Any, error: Any, verdict: str, request_error: Any
) -> None:
    """The span has the status ERROR, the class of the error and its text, and the verdict."""

    async def main() -> str:
        async with client_of(Scripted(*script)) as client:
            with pytest.raises(error) as caught:
                await upload(telemetry.watch(client), timeout=5 if script else -1)
            return str(caught.value)

    text = run(main)
    (call,) = telemetry.calls
    assert is_error(call)
    assert call.status.description == text
    assert attributes(call)["error.type"] == error.__name__
    assert attributes(call)["meeting.verdict"] == verdict
    assert [attributes(span).get("error.type") for span in telemetry.requests] == [
        request_error
    ] * len(script)
    assert [is_error(span) for span in telemetry.requests] == [bool(request_error)] * len(script)
    assert all(not span.events for span in telemetry.requests)  # no exception is recorded
    for name in CALL_METRICS | UPLOAD_METRICS:
        (point,) = telemetry.metrics()[name]
        assert point.attributes["meeting.verdict"] == verdict


@pytest.mark.both_loops
def test_a_cancelled_call(run: Run, telemetry: Telemetry) -> None:
    """Both spans end; the context is as before."""

    async def main() -> None:
        async with client_of(Scripted(hanging(), accepted())) as client:
            telemetry.watch(client)
            with anyio.move_on_after(5):
                await upload(client)
            assert trace.get_current_span() is trace.INVALID_SPAN
            await client.call("/room/end")

    run(main)
    cancelled, last = telemetry.calls
    assert (is_error(cancelled), attributes(cancelled)["error.type"]) == (True, "_OTHER")
    assert attributes(cancelled)["meeting.verdict"] == "unknown"
    request = telemetry.requests[0]
    assert parents([request]) == [ids(cancelled)[1]]
    assert attributes(request)["error.type"] in {"Cancelled", "CancelledError"}
    assert (last.parent, last.name, attributes(last)["meeting.verdict"]) == (
        None,
        "room/end",
        "accepted",
    )
    assert "meeting.document" not in attributes(last)
    durations = telemetry.metrics()["meeting.call.duration"]
    assert {point.attributes["meeting.operation"]: point.sum for point in durations} == {
        UPLOAD: pytest.approx(5),
        "room/end": 0,
    }
    (waits,) = telemetry.metrics()["meeting.upload.room_wait"]
    assert waits.count == 1  # none for a JSON call


# --- what is the parent of what ------------------------------------------------------------------


@pytest.mark.both_loops
def test_spans_of_the_application(run: Run, telemetry: Telemetry) -> None:
    """The application's span is the call's parent; what is made during the call is its child."""
    tracer = telemetry.tracers.get_tracer("app")

    async def slides(client: MeetingClient) -> AsyncIterator[bytes]:
        with tracer.start_as_current_span("render"):
            await client.call("room/list")
            yield PDF

    async def main() -> None:
        async with client_of(Scripted(then=lambda _: accepted())) as client:
            telemetry.watch(client)
            with tracer.start_as_current_span("lesson"):
                document = Document.from_stream(slides(client), "deck.pdf")
                await client.upload_whiteboard_file("room01", document)
                assert trace.get_current_span().name == "lesson"  # type: ignore[attr-defined]

    run(main)
    spans = {span.name: span for span in telemetry.calls}
    listed, sent = telemetry.requests
    assert parents([spans[UPLOAD], spans["render"], spans["room/list"], listed, sent]) == [
        ids(parent)[1]
        for parent in (
            spans["lesson"],
            spans[UPLOAD],
            spans["render"],
            spans["room/list"],
            spans[UPLOAD],
        )
    ]
    assert len({ids(span)[0] for span in telemetry.ended}) == 1


@pytest.mark.both_loops
@pytest.mark.parametrize("around", [True, False])
def test_a_batch(run: Run, telemetry: Telemetry, around: bool) -> None:
    """Each job has spans of its own, below the span around the batch, whoever started its task.

    A room that is locked makes its job release its permit, which starts another job.
    """
    tracer = telemetry.tracers.get_tracer("app")
    jobs = [
        UploadJob(f"room{number % 5}", PDF, filename=f"{number}.pdf", key=f"k{number}")
        for number in range(15)
    ]

    async def main() -> None:
        rooms = FakeRooms(lambda visit: busy() if visit.number == 1 else accepted(replying=2))
        async with client_of(rooms) as client:
            telemetry.watch(client)
            with (
                tracer.start_as_current_span("term")
                if around
                else trace.use_span(trace.INVALID_SPAN)
            ):
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


@asynccontextmanager
async def recorded(server: MeetingServer) -> AsyncIterator[tuple[Transport, list[dict[str, str]]]]:
    """Serve in process, and keep the headers of each request."""
    seen: list[dict[str, str]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        pairs = scope["headers"]
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names))
        seen.append({name.decode(): value.decode() for name, value in pairs})
        await server(scope, receive, send)

    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport) as through:
        yield HttpxTransport(through), seen


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_the_server_sees_the_trace(telemetry: Telemetry) -> None:
    """A valid ``traceparent`` with the id of the request's own span; the signature still fits."""
    server = MeetingServer()
    server.add_room("room01")
    async with recorded(server) as (transport, seen):
        async with MeetingClient(
            "http://localhost", api_key="devkey", api_secret="devsecret", transport=transport
        ) as client:
            token = context.attach(baggage.set_baggage("lesson", "höhere Mathematik"))
            await upload(telemetry.watch(client), LARGE)
            context.detach(token)
    for headers, span in zip(seen, telemetry.requests, strict=True):
        assert headers["traceparent"] in traceparents(span)
        assert headers["baggage"].startswith("lesson=h%C3%B6here")
    assert len(server.rooms["room01"].received) == 1


@pytest.mark.anyio
async def test_a_link_and_its_query_stay_private(telemetry: Telemetry) -> None:
    """The host of a link gets no trace context, and no query goes into a span."""
    server = MeetingServer()
    server.add_room("room01")
    with server.run() as url:
        link = server.host_file("plan.pdf", PDF)
        async with MeetingClient(
            url, api_key="devkey", api_secret="devsecret", check_link=True
        ) as client:
            seen = []
            send = client._session.transport.send

            async def watched(request: Any, /) -> Any:
                seen.append(request)
                return await send(request)

            client._session.transport.send = watched  # type: ignore[method-assign]
            telemetry.watch(client)
            await client.upload_whiteboard_file("room01", Document.from_link(link))
            with pytest.raises(LinkRefused, match="HEAD"):
                await client.upload_whiteboard_file(
                    "room01", Document.from_link(f"{url}/gone.pdf?token=geheim#geheim")
                )
    methods = [request.method for request in seen]
    assert methods == ["HEAD", "POST", "POST", "HEAD"]
    for request in seen:
        names = [name.lower() for name, _ in request.headers]
        assert names.count(b"traceparent") == (request.method == "POST")
    assert [span.name for span in telemetry.requests] == methods
    assert attributes(telemetry.requests[3])["url.full"] == f"{url}/gone.pdf"
    assert "geheim" not in telemetry.everything()


# --- instrument() --------------------------------------------------------------------------------


@pytest.mark.both_loops
def test_it_is_independent_of_on_event(run: Run, telemetry: Telemetry) -> None:
    """A client, one made from it, and calls with an ``on_event`` of their own; each only once."""

    async def main() -> None:
        own, transport = EventRecorder(), Scripted(then=lambda _: accepted())
        async with client_of(transport, on_event=own) as client:
            assert isinstance(telemetry.watch(client)._session.transport, Transport)
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
def test_a_client_that_is_in_use(
    run: Run, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """A call that has begun has no span of its own; its end is measured."""

    async def main() -> None:
        acts = [busy(replying=5), busy(), accepted()]
        async with client_of(Scripted(*acts)) as client, anyio.create_task_group() as group:
            group.start_soon(upload, client)
            await anyio.sleep(1)
            telemetry.watch(client)

    run(main)
    assert not telemetry.calls
    assert not caplog.records
    assert parents(telemetry.requests) == [None] * 2
    assert telemetry.metrics()["meeting.call.attempts"][0].sum == 3


class BrokenTracers(trace.NoOpTracerProvider):
    """Makes tracers that cannot make the span of a call."""

    def get_tracer(self, *_args: Any, **_how: Any) -> trace.Tracer:
        class Broken(trace.NoOpTracer):
            def start_span(self, *args: Any, **how: Any) -> Any:
                if how.get("kind") is trace.SpanKind.CLIENT:
                    return super().start_span(*args, **how)
                raise LookupError("no span today")

        return Broken()


@pytest.mark.both_loops
def test_an_observer_that_raises(
    run: Run, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls go on, and the log has it; another observer gets all events."""

    async def main() -> Any:
        last = EventRecorder()
        async with client_of(Scripted(busy(), accepted())) as client:
            instrument(client, tracer_provider=BrokenTracers(), meter_provider=telemetry.meters)
            client._session.observers.append(last)
            receipt = await upload(client)
        assert last.kinds[0] == "Started"
        assert last.kinds[-1] == "Finished"
        return receipt

    assert run(main).size == len(PDF)
    (warning,) = [entry for entry in caplog.records if "observer raised" in entry.getMessage()]
    assert warning.exc_info
    assert telemetry.metrics()["meeting.call.attempts"][0].sum == 2


def test_without_an_sdk(run: Run) -> None:
    """With the bare API nothing happens, and requests get no header."""

    async def main() -> None:
        transport = Scripted(accepted())
        async with client_of(transport) as client:
            instrument(client)
            await upload(client)
        assert "traceparent" not in headers_of(transport.visits[0])

    run(main)


def test_the_log_names_the_trace(run: Run, telemetry: Telemetry) -> None:
    """Records of a call, the last one too, are made while its span is current."""
    spans: list[int] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            spans.append(trace.get_current_span().get_span_context().span_id)

    async def main() -> None:
        async with client_of(Scripted(busy(), accepted())) as client:
            await upload(telemetry.watch(client))

    with logging_to(Handler()):
        run(main)
    assert spans == [ids(telemetry.calls[0])[1]] * 4


@pytest.mark.both_loops
def test_no_secret_is_exported(run: Run, telemetry: Telemetry) -> None:
    """Not in a span, an event, a status or a metric, whatever happens."""

    async def main() -> None:
        for act in (accepted, absent, busy, lost, cut_off, unreachable, hanging):
            rooms = Scripted(then=lambda _, act=act: act())  # type: ignore[misc]
            headers = {"X-Proxy": "proxy-passw0rd"}
            async with client_of(rooms, preflight=True, default_headers=headers) as client:
                telemetry.watch(client)
                for data in (PDF, LARGE):
                    with anyio.move_on_after(100), suppress(MeetingError):
                        await upload(client, data)
            for visit in rooms.visits:
                sent.update(headers_of(visit)[name] for name in ("api-key", "hash-signature"))

    sent = {SECRET, "proxy-passw0rd"}
    run(main)
    exported = telemetry.everything()
    assert len(sent) == 5  # two signatures
    assert "deck.pdf" in exported
    assert not [secret for secret in sent if secret in exported]


def test_the_global_providers(monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry) -> None:
    """Are used unless others are given; the address of a server needs no brackets."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: telemetry.tracers)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: telemetry.meters)

    async def main() -> None:
        keys: Any = {"api_key": KEY, "api_secret": SECRET, "preflight": False}
        transport = Scripted(accepted())
        async with MeetingClient("https://[::1]:7", transport=transport, **keys) as client:
            instrument(client)
            await upload(client)

    anyio.run(main)
    assert attributes(telemetry.calls[0])["server.address"] == "::1"


def test_what_to_install() -> None:
    """Without OpenTelemetry the import says what to do."""
    program = "import sys; sys.modules['opentelemetry'] = None; import meeting_async.otel"
    failed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert 'pip install ".[otel]" in a clone' in failed.stderr
