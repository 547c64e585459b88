"""The same client for threads: its methods block, and need neither ``async`` nor an event loop.

    from meeting_async.sync import MeetingClient

    with MeetingClient("https://meet.example.com", api_key=..., api_secret=...) as client:
        receipt = client.upload_whiteboard_file("room01", "deck.pdf")

All clients of a process share one event loop, in a thread that the first call starts; a forked
process starts its own. Errors, events and values are those of :mod:`meeting_async`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import anyio

from meeting_async._blocking import Call, Waiting, event_loop, in_loop
from meeting_async._client import ClientOptions, ClientSettings
from meeting_async._client import MeetingClient as AsyncClient
from meeting_async._models import hidden

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meeting_async._batch.batch import Batch as AsyncBatch
    from meeting_async._batch.results import BatchReport, UploadOutcome

__all__ = ["Batch", "MeetingClient"]

P = ParamSpec("P")
T = TypeVar("T")
Client = TypeVar("Client")


class Batch:
    """Many uploads: made by :meth:`MeetingClient.upload_many`, run by ``with``.

    Iterate over it to get the outcomes as the jobs end; several threads may. Leaving the block
    waits for all jobs, but an exception in the block cancels the running uploads. A generator of
    jobs runs in your thread, while it waits for the batch.
    """

    def __init__(self, batch: AsyncBatch, waiting: Waiting) -> None:
        self._batch, self._waiting = batch, waiting
        self._leaving: anyio.Event | None = None
        self._life = Call(self._live, waiting)

    @property
    def report(self) -> BatchReport:
        """The results so far; complete once the batch has ended."""
        return self._batch.report

    def stop(self) -> None:
        """Start no new upload, and let the running uploads end; all other jobs are skipped."""
        in_loop(self._batch.stop)

    def wait(self) -> BatchReport:
        """Wait for all jobs and return the report.

        Raises:
            Exception: An exception of the iterable, after all jobs that were read have ended.

        """
        return Call(self._batch.wait, self._waiting).result()

    def __iter__(self) -> Iterator[UploadOutcome]:
        outcomes = in_loop(partial(aiter, self._batch))
        following = partial(anext, outcomes, None)
        while (outcome := Call[Any](following, self._waiting).result()) is not None:
            yield outcome

    async def _live(self) -> None:
        async with self._batch:
            self._leaving = anyio.Event()
            self._waiting.notify()
            await self._leaving.wait()

    def __enter__(self) -> Self:
        if self._leaving is not None:
            raise RuntimeError("a batch runs once: make a new one")
        self._life.result(lambda: self._leaving is not None)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if exc_value is None:
                self._leave()
            else:
                self._life.interrupt(exc_value)
        finally:
            self._waiting.close()

    def _leave(self) -> None:
        assert self._leaving is not None  # noqa: S101 - it was entered
        try:
            in_loop(self._leaving.set)
        except BaseException as interruption:
            self._life.interrupt(interruption)
            raise
        self._life.result()


def _like(
    method: Callable[Concatenate[AsyncClient, P], T],
) -> Callable[[Callable[Concatenate[Client, ...], T]], Callable[Concatenate[Client, P], T]]:
    """Give a method the signature of one of the async client."""
    return functools.wraps(method, assigned=("__doc__",), updated=())


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Awaitable[T]],
) -> Callable[[object], Callable[Concatenate[MeetingClient, P], T]]:
    """Make a method of the async client one that waits."""

    @functools.wraps(method)
    def call(self: MeetingClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return Call(partial(method, self._client, *args, **kwargs)).result()

    return lambda _: call


def _batch(
    method: Callable[Concatenate[AsyncClient, P], AsyncBatch],
) -> Callable[[object], Callable[Concatenate[MeetingClient, P], Batch]]:
    """Make ``upload_many`` return a batch for threads, which reads the jobs in their thread."""

    @functools.wraps(method)
    def call(self: MeetingClient, /, *args: Any, **kwargs: Any) -> Batch:
        from meeting_async._batch.flow import LISTS  # noqa: PLC0415 - loaded when needed

        waiting = Waiting()
        if args:
            kwargs["jobs"], args = args[0], args[1:]
        jobs: object = kwargs.get("jobs")
        if isinstance(jobs, Iterable) and not isinstance(jobs, (AsyncIterable, *LISTS)):
            kwargs["jobs"] = waiting.read(jobs)
        return Batch(in_loop(partial(method, self._client, *args, **kwargs)), waiting)

    signature = inspect.signature(method).replace(return_annotation=Batch)
    vars(call)["__signature__"] = signature
    call.__doc__ = (method.__doc__ or "").replace("async with", "with").replace("await ", "")
    return lambda _: call


class MeetingClient:
    """:class:`meeting_async.MeetingClient` for threads: the same settings, methods and errors.

    Any number of threads may use one client. Use it as a context manager, or call :meth:`close`;
    a client that is still open when the program ends is closed then.

    What interrupts a call (Ctrl-C, a signal handler that raises, a task queue's time limit) ends
    it as a cancellation does. What is then known of the document is logged, and is a note on the
    exception. ``on_event`` and signers are called in the thread of the event loop: they must not
    block.

    Raises:
        ConfigurationError: A setting cannot be used; the error names it.
        RuntimeError: Raised by every method, in a thread that runs an event loop (use
            :class:`meeting_async.MeetingClient` there) and with gevent or eventlet.

    """

    @_like(AsyncClient.__init__)
    def __init__(self, *args: Any, **settings: Any) -> None:
        if "api_secret" in settings:  # tracebacks with locals do not show it
            settings["api_secret"] = hidden(settings["api_secret"])
        self._client = AsyncClient(*args, **settings)
        event_loop.clients.add(self._client)

    if TYPE_CHECKING:

        @classmethod
        def from_env(  # noqa: D102 - that of the async client
            cls, environ: Mapping[str, str] | None = None, **settings: Unpack[ClientSettings]
        ) -> Self: ...
    else:
        from_env = vars(AsyncClient)["from_env"]

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """Return a client with other options; see :meth:`meeting_async.MeetingClient.with_options`.

        Raises:
            ConfigurationError: An option cannot be used; the error names it.

        """
        derived = type(self).__new__(type(self))
        derived.__dict__.update(self.__dict__)
        derived._client = self._client.with_options(**changes)  # noqa: SLF001 - one of ours
        return derived

    @_blocking(AsyncClient.get_active_room_info)
    def get_active_room_info(self) -> None: ...  # noqa: D102 - as above

    @_blocking(AsyncClient.wait_until_active)
    def wait_until_active(self) -> None: ...  # noqa: D102 - as above

    @_blocking(AsyncClient.upload_whiteboard_file)
    def upload_whiteboard_file(self) -> None: ...  # noqa: D102 - as above

    @_batch(AsyncClient.upload_many)
    def upload_many(self) -> None: ...  # noqa: D102 - as above

    @_blocking(AsyncClient.call)
    def call(self) -> None: ...  # noqa: D102 - as above

    @_blocking(AsyncClient.check)
    def check(self) -> None: ...  # noqa: D102 - as above

    @_blocking(AsyncClient.aclose)
    def close(self) -> None: ...  # noqa: D102 - as above

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        made = self.__dict__.get("_client", "<MeetingClient, not made>")
        return f"<sync {str(made)[1:]}"
