"""The arguments of ``upload_many``, checked."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

import attrs
from attrs.validators import optional

from meeting_async._batch.journal import Journal, is_journal
from meeting_async._policies import Delivery, delivery_mode, instance, number
from meeting_async._text import short_repr
from meeting_async.errors import ConfigurationError

OncePer = Literal["session", "room"]
"""What a journal counts as delivered: a document in the running session, or in any of its room."""


def _once_per(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    choices = get_args(OncePer)
    if value not in choices:
        fix = f"choose {' or '.join(map(repr, choices))}"
        raise ConfigurationError(field.name, short_repr(value), "is not a choice", fix)


def _journal(_instance: object, field: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not (isinstance(value, str | os.PathLike) or is_journal(value)):
        problem, fix = "is neither a path nor a journal", "give the path of a file"
        raise ConfigurationError(field.name, short_repr(value), problem, fix)


_count = number(int, 1)
_seconds = optional(number(float, 0, above=True))


@attrs.frozen(kw_only=True)
class BatchOptions:
    """See :meth:`MeetingClient.upload_many`."""

    concurrency: int = attrs.field(default=32, validator=_count)
    journal: str | os.PathLike[str] | Journal | None = attrs.field(default=None, validator=_journal)
    delivery: Delivery | None = attrs.field(default=None, validator=optional(delivery_mode))
    once_per: OncePer = attrs.field(default="session", validator=_once_per)
    wait_active: float | None = attrs.field(default=None, validator=_seconds)
    max_wait: float | None = attrs.field(default=None, validator=optional(number(float, 0)))
    timeout: float | None = attrs.field(default=None, validator=_seconds)
    window: int = attrs.field(default=10_000, validator=_count)
    keep_outcomes: bool = attrs.field(default=True, validator=instance(bool))
