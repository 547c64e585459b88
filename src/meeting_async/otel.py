"""Traces and metrics of a client, with OpenTelemetry (extra ``otel``).

Every call gets a span; its HTTP requests are children of it, and carry its trace context to the
server. Waits and retries are events of the call's span. Attribute names of HTTP are those of the
semantic conventions (https://opentelemetry.io/docs/specs/semconv/http/); names that start with
``meeting.`` are this library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import attrs

try:
    from opentelemetry import context, metrics, propagate, trace
except ModuleNotFoundError as _error:
    hint = 'meeting_async.otel needs opentelemetry-api: pip install ".[otel]" in a clone'
    raise ModuleNotFoundError(hint, name=_error.name) from _error

from meeting_async import __version__, _events, sync
from meeting_async._delivery.observer import harmless
from meeting_async._models import Reply, Request, Verdict
from meeting_async._protocol.requests import UPLOAD_WHITEBOARD_FILE, host_and_port

if TYPE_CHECKING:
    import meeting_async
    from meeting_async.transports import Transport

__all__ = ["instrument"]

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Limits of histogram buckets: those of the semantic conventions, and more for conversions."""

CALL_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""The same for calls, which may wait behind several locks of a room (300 s each)."""

ATTEMPTS = (0, 1, 2, 3, 4, 5, 10, 20)


def instrument(
    client: meeting_async.MeetingClient | sync.MeetingClient,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Emit spans and metrics for all calls of a client, and of all that share its connections.

    Has no effect on a client that is already instrumented, or that was made from one by
    ``with_options``. ``on_event`` stays yours. Names and attributes are in ``docs/operations.md``.

    Args:
        client: The client.
        tracer_provider: Gets the spans, instead of the global provider.
        meter_provider: Gets the metrics, instead of the global provider.

    """
    made = client._client if isinstance(client, sync.MeetingClient) else client  # noqa: SLF001
    session = made._session  # noqa: SLF001 - of this package
    if session.traced is not None:
        return
    tracer = trace.get_tracer("meeting_async", __version__, tracer_provider)
    meter = metrics.get_meter("meeting_async", __version__, meter_provider)
    session.traced = _RequestTracer(session.transport, tracer, meter).send
    session.observers.append(_CallObserver(tracer, meter))


@attrs.define(eq=False)
class _RunningCall:
    span: trace.Span
    token: Token[context.Context] | None = None
    resends: int = 0
    """Earlier attempts, for the request that is sent next."""


_CALL = context.create_key("meeting_async.call")
"""Where the context of a task has the :class:`_RunningCall`."""


# --- calls ---------------------------------------------------------------------------------------


class _CallObserver:
    """Turns the events of calls into spans and metrics."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._tracer = tracer
        self._running: dict[int, _RunningCall] = {}
        self._seconds = _histogram(
            meter, "meeting.call.duration", "s", "Duration of calls, waits included", CALL_SECONDS
        )
        self._attempts = _histogram(
            meter, "meeting.call.attempts", "{attempt}", "Attempts of calls", ATTEMPTS
        )
        self._room_wait = _histogram(
            meter, "meeting.upload.room_wait", "s", "Waits for a room, per upload", CALL_SECONDS
        )
        self._bytes_sent = meter.create_counter(
            "meeting.upload.bytes_sent", "By", "Bytes of documents that were sent"
        )
        self._bytes_resent = meter.create_counter(
            "meeting.upload.bytes_resent", "By", "Bytes of documents that were sent more than once"
        )

    def __call__(self, event: _events.Event) -> None:
        if isinstance(event, _events.Started):
            self._start(event)
        elif isinstance(event, _events.Finished):
            self._finish(event)
        elif event.call in self._running:  # else it began before the client was instrumented
            call = self._running[event.call]
            if isinstance(event, _events.AttemptStarted):
                call.resends = event.attempt - 1
            else:
                call.span.add_event(type(event).__name__, _own_fields(event))

    def _start(self, event: _events.Started) -> None:
        room = {} if event.room_id is None else {"meeting.room_id": event.room_id}
        attributes = {**room, **_server(event.host)}
        span = self._tracer.start_span(event.operation, attributes=attributes)
        call = _RunningCall(span)
        call.token = context.attach(trace.set_span_in_context(span, context.set_value(_CALL, call)))
        self._running[event.call] = call

    def _finish(self, event: _events.Finished) -> None:
        call = self._running.pop(event.call, None)
        try:
            self._measure(event)
            if call is not None:
                self._end(call.span, event)
        finally:
            if call is not None and call.token is not None:
                context.detach(call.token)

    def _end(self, span: trace.Span, event: _events.Finished) -> None:
        document = {} if event.document is None else {"meeting.document": event.document}
        verdict = {"meeting.verdict": event.verdict.value, "meeting.attempts": event.attempts}
        span.set_attributes({**document, **verdict})
        if event.verdict is not Verdict.ACCEPTED:
            # "_OTHER" is what the semantic conventions call an unknown class.
            kind = type(event.error).__name__ if event.error else "_OTHER"
            span.set_attribute("error.type", kind)
            span.set_status(trace.StatusCode.ERROR, str(event.error or event.verdict))
        span.end()

    def _measure(self, event: _events.Finished) -> None:
        attributes = {
            "meeting.operation": event.operation,
            "meeting.verdict": event.verdict.value,
            "server.address": _server(event.host)["server.address"],
        }
        self._seconds.record(event.seconds, attributes)
        self._attempts.record(event.attempts, attributes)
        if event.operation == UPLOAD_WHITEBOARD_FILE:
            self._room_wait.record(event.waited, attributes)
            self._bytes_sent.add(event.bytes_sent, attributes)
            self._bytes_resent.add(event.bytes_resent, attributes)


def _own_fields(event: _events.Event) -> dict[str, Any]:
    """Return the fields that only this kind of event has, without ``None``."""
    common = attrs.fields_dict(_events.Event)
    return {
        f"meeting.{name}": value
        for name, value in attrs.asdict(event).items()
        if name not in common and value is not None
    }


# --- requests ------------------------------------------------------------------------------------


def _shown(request: Request) -> str:
    """Return the URL of a request; that of a stored file is like a key to it."""
    if request.method == "POST":
        return request.url
    return urlsplit(request.url)._replace(path="/…", query="").geturl()


class _RequestTracer:
    """Passes requests on to a transport, each in a span of its own."""

    def __init__(self, transport: Transport, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._transport, self._tracer = transport, tracer
        name, description = "http.client.request.duration", "Duration of HTTP client requests"
        self._seconds = _histogram(meter, name, "s", description, REQUEST_SECONDS)

    async def send(self, request: Request, /) -> Reply:
        """Send a request in a span."""
        server = {"http.request.method": request.method, **_server(host_and_port(request.url))}
        began, outcome = anyio.current_time(), dict[str, str | int]()
        span: trace.Span = trace.INVALID_SPAN
        with harmless():
            attributes = {**server, "url.full": _shown(request), **_resends()}
            kind = trace.SpanKind.CLIENT
            span = self._tracer.start_span(request.method, kind=kind, attributes=attributes)
        token = context.attach(trace.set_span_in_context(span))
        try:
            with harmless():
                request = self._with_trace_context(request)
            reply = await self._transport.send(request)
            outcome["http.response.status_code"] = reply.status
            if reply.status >= 400:
                outcome["error.type"] = str(reply.status)
        except BaseException as error:  # its text may quote headers
            outcome["error.type"] = type(error).__name__
            raise
        finally:
            context.detach(token)
            with harmless():
                span.set_attributes(outcome)
                if "error.type" in outcome:
                    span.set_status(trace.StatusCode.ERROR)
                self._seconds.record(anyio.current_time() - began, {**server, **outcome})
                span.end()
        return reply

    def _with_trace_context(self, request: Request) -> Request:
        """Add the headers of the trace context."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        added = tuple((name.encode(), value.encode()) for name, value in carrier.items())
        return attrs.evolve(request, headers=(*request.headers, *added))


def _resends() -> dict[str, int]:
    """Return the number of earlier attempts; checks and questions do not count."""
    call = context.get_value(_CALL)
    if not isinstance(call, _RunningCall) or not call.resends:
        return {}
    resends, call.resends = call.resends, 0
    return {"http.request.resend_count": resends}


def _server(host: str) -> dict[str, str | int]:
    """Return the attributes for ``host:port``."""
    address, _, port = host.rpartition(":")
    return {"server.address": address.strip("[]"), "server.port": int(port)}


def _histogram(
    meter: metrics.Meter, name: str, unit: str, description: str, limits: Sequence[float]
) -> metrics.Histogram:
    return meter.create_histogram(
        name, unit, description, explicit_bucket_boundaries_advisory=limits
    )
