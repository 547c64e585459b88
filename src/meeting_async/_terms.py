"""What was agreed on for a batch: the arguments of ``upload_many``, checked."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

import attrs

from meeting_async._calls import checked_seconds
from meeting_async._limits import shown
from meeting_async._policies import LockPolicy
from meeting_async.errors import InvalidInput

OnUnknown = Literal["report", "resend"]
"""What to do with a document that may or may not have reached its room."""


def _positive(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    if type(value) is not int or value < 1:
        problem, fix = "is not a positive number", "give an int above 0"
        raise InvalidInput(field.name, shown(value), problem, fix)


def _choice(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    choices = get_args(OnUnknown)
    if value not in choices:
        fix = f"choose {' or '.join(map(repr, choices))}"
        raise InvalidInput(field.name, shown(value), "is not a choice", fix)


def _seconds(_instance: object, field: attrs.Attribute[Any], value: Any) -> None:
    checked_seconds(value, field.name)


def _wait(_instance: object, _field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        LockPolicy(max_wait=value)


@attrs.frozen(kw_only=True)
class Terms:
    """See :meth:`MeetingClient.upload_many`."""

    concurrency: int = attrs.field(default=32, validator=_positive)
    journal: str | os.PathLike[str] | None = None
    on_unknown: OnUnknown = attrs.field(default="report", validator=_choice)
    wait_active: float | None = attrs.field(default=None, validator=_seconds)
    max_wait: float | None = attrs.field(default=None, validator=_wait)
    deadline: float | None = attrs.field(default=None, validator=_seconds)
    window: int = attrs.field(default=10_000, validator=_positive)
    keep_outcomes: bool = True

    @property
    def resends_unknown(self) -> bool:
        """Whether what may have arrived is sent again, after the lock window."""
        return self.on_unknown == "resend"
