"""The settings of a meeting server, and its clock."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

import anyio
import attrs
from anyio.lowlevel import RunVar
from attrs.validators import deep_iterable, ge, gt, in_, instance_of, optional

from meeting_async.testing._files import ACCEPTED_KINDS, KIND_NAMES

_epoch: RunVar[float] = RunVar("meeting_async.testing.epoch")
"""The zero of an event loop's clock, in seconds since 1970."""

StoredFiles: TypeAlias = Literal["shared", "separate", "absent", "redirected"]
"""Where a server looks for the documents that it has received."""


@attrs.define(kw_only=True, eq=False)
class Settings:
    """Settings of a meeting server; see `MeetingServer`."""

    api_key: str = attrs.field(default="devkey", repr=False)
    api_secret: str = attrs.field(default="devsecret", repr=False)
    max_size_whiteboard_file: int = attrs.field(default=30 * 1024**2, validator=gt(0))
    max_body_size: int = attrs.field(default=50 * 1024**2, validator=gt(0))
    lock_seconds: float = attrs.field(default=300.0, validator=gt(0))
    processing_seconds: float = attrs.field(default=0.0, validator=ge(0))
    reply_after: float | None = attrs.field(default=None, validator=optional(ge(0)))
    presenter_required: bool = attrs.field(default=True, validator=instance_of(bool))
    strict_room_ids: bool = attrs.field(default=True, validator=instance_of(bool))
    accepted_kinds: Collection[str] = attrs.field(
        default=ACCEPTED_KINDS, validator=deep_iterable(in_(KIND_NAMES))
    )
    strict_pdf: bool = attrs.field(default=False, validator=instance_of(bool))
    office_documents_clash: bool = attrs.field(default=False, validator=instance_of(bool))
    mixes_up_rooms: bool = attrs.field(default=False, validator=instance_of(bool))
    stored_files: StoredFiles = attrs.field(default="shared", validator=in_(get_args(StoredFiles)))
    stored_files_after: float = attrs.field(default=0.0, validator=ge(0))
    stored_files_clock: float = attrs.field(default=0.0, validator=instance_of((int, float)))
    holds_forms: float = attrs.field(default=0.0, validator=ge(0))
    keep_content: bool = attrs.field(default=False, validator=instance_of(bool))


@attrs.define(eq=False)
class Clock:
    """A clock in seconds; its zero has no meaning.

    In process it is the clock of the caller's event loop, virtual time included. Once the server
    has run in its own thread it is `time.monotonic`, which the thread's asyncio loop also uses and
    which every thread can read. Locks and conversions are times on this clock, not background
    tasks, so they go on after the request that started them.
    """

    is_threaded: bool = False
    _latest: float = -math.inf

    def now(self) -> float:
        """Return the current time; `RuntimeError` in process outside the event loop."""
        try:
            self._latest = time.monotonic() if self.is_threaded else anyio.current_time()
        except RuntimeError as error:
            raise RuntimeError(
                "a meeting server in process uses the clock of its event loop: "
                "do this inside the loop, or inside `with server.run():`"
            ) from error
        return self._latest

    def latest(self) -> float:
        """Return the current time or, outside the event loop, the last known time."""
        with contextlib.suppress(RuntimeError):
            self.now()
        return self._latest

    def date(self) -> float:
        """Return the current time in seconds since 1970; in process it goes on with `now()`."""
        if self.is_threaded:
            return time.time()
        now = self.now()
        if (epoch := _epoch.get(None)) is None:
            _epoch.set(epoch := time.time() - now)
        return epoch + now

    async def sleep_until(self, moment: float) -> None:
        """Sleep until `now()` is at least ``moment``, despite the rounding of a sleep."""
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110 - nothing else changes it
            await anyio.sleep(left)
