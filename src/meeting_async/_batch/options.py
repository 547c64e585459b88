"""The arguments of ``upload_many``, checked."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

import attrs
from attrs.validators import optional

from meeting_async._batch.journal import Journal, is_journal
from meeting_async._delivery.session import Options
from meeting_async._policies import instance, number
from meeting_async._text import short_repr
from meeting_async.errors import ConfigurationError

OnUnknown = Literal["report", "resend"]
"""What to do with a document that may or may not have reached its room."""


def _on_unknown(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    choices = get_args(OnUnknown)
    if value is not None and value not in choices:
        fix = f"choose {' or '.join(map(repr, choices))}, or None"
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
    on_unknown: OnUnknown | None = attrs.field(default=None, validator=_on_unknown)
    wait_active: float | None = attrs.field(default=None, validator=_seconds)
    max_wait: float | None = attrs.field(default=None, validator=optional(number(float, 0)))
    timeout: float | None = attrs.field(default=None, validator=_seconds)
    window: int = attrs.field(default=10_000, validator=_count)
    keep_outcomes: bool = attrs.field(default=True, validator=instance(bool))


def with_delivery(options: Options, on_unknown: OnUnknown | None) -> Options:
    """Return the options of a batch's uploads: ``"resend"`` is delivery at least once.

    Raises:
        ConfigurationError: The client has at_least_once, but the batch does not.

    """
    if on_unknown == "report" and options.delivery == "at_least_once":
        problem = "contradicts the client's delivery='at_least_once'"
        fix = "leave it out, or use a client with delivery='at_most_once'"
        raise ConfigurationError("on_unknown", "'report'", problem, fix)
    if on_unknown == "resend":
        return attrs.evolve(options, delivery="at_least_once")
    return options
