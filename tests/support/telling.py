"""Everything that a call tells: its result or error, its events, its log; down to each text.

told = Told()
with told.listening():
    await told.of(client.upload_whiteboard_file(..., on_event=told))
found = told.texts()
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pickle
import traceback
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import blockbuster

from meeting_async import Event, UploadReceipt
from meeting_async.errors import MeetingError
from meeting_async.web import http_answer, public_detail

Found = Iterator[tuple[str, str]]
"""Where a text was found, and the text."""

_TESTS = str(Path(__file__).parents[1]), str(Path(blockbuster.__file__).parent)
_LOGGER = logging.getLogger("meeting_async")
_OF_EVERY_RECORD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


@attrs.define(eq=False)
class Told:
    """What a number of calls told."""

    results: list[Any] = attrs.field(factory=list)
    """What was returned or raised, call by call."""
    events: list[Event] = attrs.field(factory=list)
    records: list[logging.LogRecord] = attrs.field(factory=list)

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what is logged, at every level."""
        with logging_to(_Keeping(self.records)):
            yield

    async def of(self, call: Awaitable[Any]) -> Any:
        """Wait for a call, and keep and return what comes of it."""
        try:
            result = await call
        except MeetingError as error:
            result = error
        self.results.append(result)
        return result

    def texts(self) -> Found:
        """All texts, with what a pickle, a log file and a traceback with locals show."""
        for thing in [*self.results, *self.events]:
            yield from texts(thing)
            yield from pickled(thing)
        for result in self.results:
            if isinstance(result, BaseException):
                yield from traceback_with_locals(result)
        for record in self.records:
            yield from logged(record)


@contextlib.contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Log everything there, and nowhere else: pytest cannot report what is no text."""
    before = _LOGGER.level, _LOGGER.propagate
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.DEBUG)
    _LOGGER.propagate = False
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(before[0])
        _LOGGER.propagate = before[1]


class _Keeping(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def texts(thing: Any, where: str = "") -> Found:
    """Every text in a value, and what it looks like as text."""
    where = where or type(thing).__name__
    if isinstance(thing, str):
        yield where, str(thing)
    elif isinstance(thing, bytes | bytearray):
        yield f"{where} (bytes)", thing.decode("latin-1")
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from texts(key, f"{where} key")
            yield from texts(value, f"{where}[{key!r:.40}]")
    elif isinstance(thing, list | tuple | set):
        for number, value in enumerate(thing):
            yield from texts(value, f"{where}[{number}]")
    elif isinstance(thing, BaseException):
        yield f"str of {where}", str(thing)
        yield f"repr of {where}", repr(thing)
        yield from texts(thing.args, f"{where}.args")
        yield from texts(vars(thing), where)
        for link in (thing.__cause__, thing.__context__):
            if link is not None:
                yield from texts(link, f"{where} from {type(link).__name__}")
    elif attrs.has(type(thing)):
        yield f"repr of {where}", repr(thing)
        for field in attrs.fields(type(thing)):
            yield from texts(getattr(thing, field.name), f"{where}.{field.name}")


def pickled(thing: Any) -> Found:
    """What a pickle of it holds."""
    yield f"pickle of {type(thing).__name__}", pickle.dumps(thing).decode("latin-1")


def logged(record: logging.LogRecord) -> Found:
    """What a record of the log shows, by itself and in a file, with the locals of its traceback."""
    yield "log", record.getMessage()
    yield "log file", logging.Formatter().format(record)
    yield from extra(record)
    if record.exc_info and record.exc_info[1]:
        yield from traceback_with_locals(record.exc_info[1])


def traceback_with_locals(error: BaseException) -> Found:
    """The locals of every frame that an error went through, as some reporters show them.

    Without those of the tests and their tools, and without those that cannot be shown.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if not code.co_filename.startswith(_TESTS):
            for name, value in frame.f_locals.items():
                with contextlib.suppress(Exception):
                    yield f"traceback: {name} in {code.co_qualname}", repr(value)
    for link in (error.__cause__, error.__context__):
        if link is not None:
            yield from traceback_with_locals(link)


def extra(record: logging.LogRecord) -> Found:
    """The fields that the library has added to a record."""
    for name, value in vars(record).items():
        if name not in _OF_EVERY_RECORD:
            yield from texts(value, f"log.{name}")


def files(folder: Path) -> Found:
    """What is in the files of a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.name, path.read_bytes().decode("latin-1")


def containing(found: Iterable[tuple[str, str]], words: Iterable[str]) -> list[str]:
    """Tell where one of some words is, in whatever case."""
    lowered = [word.lower() for word in words]
    each = ((where, text.lower()) for where, text in found)
    return sorted({where for where, text in each if any(word in text for word in lowered)})


MOST, MOST_OF_A_REPR = 4096, 16_384
"""Characters of a text and of a line of a log, which some tools cut; and of a page at most."""


def unfit(told: Told, *foreign: str) -> list[str]:
    """Tell which texts are not one printable line of bounded length.

    The first bytes of a reply (``body``), its parsed content (``raw``) and a room are data, not
    text. The cause of an error is somebody else's, and so is what has a ``foreign`` word in its
    place.
    """
    found = [pair for thing in [*told.results, *told.events] for pair in texts(thing)]
    found += [pair for line in told.records for pair in extra(line)]
    found += [("log", line.getMessage()) for line in told.records]
    for result in told.results:
        if isinstance(result, UploadReceipt | MeetingError):
            found += texts(http_answer(result), "web")
            json.dumps(http_answer(result).body).encode()
        if isinstance(result, MeetingError):
            found.append(("public detail", public_detail(result)))
    data = ("(bytes)", ".raw", " from ", "dict", "ActiveRoom", *foreign)
    return sorted({
        f"{where}: {'too long' if text.isprintable() else 'unprintable'}"
        for where, text in found
        if not any(word in where for word in data)
        and not (text.isprintable() and len(text) <= (MOST_OF_A_REPR if "repr" in where else MOST))
    })  # fmt: skip


class LogFile(logging.StreamHandler[Any]):
    """The library's log as services write it, in UTF-8; each record with its fields."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(io.TextIOWrapper(self._bytes, "utf-8", newline="\n", write_through=True))
        self.setFormatter(_WithFields())
        self.failed: list[str] = []
        """What went wrong with records that could not be written."""

    @property
    def content(self) -> str:
        """What was written."""
        return self._bytes.getvalue().decode()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
        """Remember what others print."""
        self.failed.append(f"{record.msg}: {traceback.format_exc(limit=-1)}")


class _WithFields(logging.Formatter):
    """Writes the message, and after it each field that the library has added."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name for name in vars(record) if name not in _OF_EVERY_RECORD}
        shown = " ".join(f"{name}={getattr(record, name)!s}" for name in sorted(fields))
        return f"{super().format(record)} {shown}"
