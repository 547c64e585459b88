"""The text of a manifest, line by line: CSV or JSON lines. Bytes in, rows and mistakes out; no I/O.

Whatever the bytes are, nothing is raised: what cannot be used is a mistake with its line.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from meeting_async._limits import shown

COLUMNS = ("room_id", "document", "filename", "key")
REQUIRED = ("room_id", "document")

_DELIMITERS = ",;\t"
"""Excel writes what separates lists in the country it is set to; a tie goes to the first."""


@attrs.frozen
class Row:
    """A line that asks for an upload; what it does not say is not in ``values``."""

    line: int
    """Where it begins, from 1."""
    values: Mapping[str, str]


@attrs.frozen
class Mistake:
    """Something that cannot be used, and on which line."""

    line: int
    text: str


Found = Iterator[Row | Mistake]


def rows_in(data: bytes) -> Found:
    """Read a manifest; its format is recognised by its first character."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield Mistake(1, "the manifest is UTF-16: save it as UTF-8 (in Excel: 'CSV UTF-8')")
        return
    # Bytes that are not UTF-8 become surrogates here, so that each is reported with its line.
    text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    first = text.lstrip()[:1]
    if not first:
        yield Mistake(1, "the manifest is empty")
    elif first == "[":
        fix = "put each object on a line of its own, without brackets and commas"
        yield Mistake(1, f"the manifest is a JSON array: {fix}")
    else:
        yield from _json_rows(text) if first == "{" else _csv_rows(text)


def _checked(row: Row) -> Found:
    """Add what is wrong with the values of a row, in whatever format they were written."""
    is_usable = True
    for name in REQUIRED:
        if not row.values.get(name):
            yield Mistake(row.line, f"{name} is empty")
            is_usable = False
    for name, value in row.values.items():
        if "\0" in value:
            yield Mistake(row.line, f"{name} contains NUL")
            is_usable = False
    if is_usable:
        yield row


# --- CSV -----------------------------------------------------------------------------------------


def _csv_rows(text: str) -> Found:
    """Read a header line and what follows (RFC 4180; blanks behind a delimiter do not count)."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=_delimiter(text),
        skipinitialspace=True,
        strict=True,
    )
    lines = _records(reader)
    columns: Sequence[str] | None = None
    for line, record in lines:
        if isinstance(record, str):
            yield Mistake(line, record)
            if columns is None:
                return
        elif columns is None:
            columns = _trimmed([name.strip().lower() for name in record])
            mistakes = list(_header_mistakes(columns))
            yield from (Mistake(line, mistake) for mistake in mistakes)
            if not set(REQUIRED) <= set(columns):
                return
        else:
            yield from _csv_row(line, columns, record)


def _delimiter(text: str) -> str:
    header = re.search(r"[^\r\n]*\S[^\r\n]*", text)
    names = re.split(rf'["{_DELIMITERS} ]+', header[0].lower()) if header else []
    if not set(names) & set(COLUMNS):
        return _DELIMITERS[0]
    return max(_DELIMITERS, key=lambda delimiter: header[0].count(delimiter) if header else 0)


def _records(reader: Any) -> Iterator[tuple[int, Sequence[str] | str]]:
    """Yield the records that are not empty, or in place of one what is wrong with it."""
    while True:
        line = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = str(error).replace("unexpected end of data", "a quote is not closed")
            yield line, f"not CSV: {reason}"
            continue
        bad = next((value for value in record if _is_undecodable(value)), None)
        if bad is not None:
            yield line, _undecodable(bad)
        elif any(record):  # spreadsheets write lines of delimiters for empty rows
            yield line, record


def _trimmed(record: Sequence[str]) -> Sequence[str]:
    """Drop the empty values at the end, which spreadsheets leave of columns that are gone."""
    end = len(record)
    while end and not record[end - 1]:
        end -= 1
    return record[:end]


def _header_mistakes(columns: Sequence[str]) -> Iterator[str]:
    for name in dict.fromkeys(columns):
        if name not in COLUMNS:
            yield f"unknown column {shown(name)}: there are {', '.join(COLUMNS)}"
        elif columns.count(name) > 1:
            yield f"column {name!r} is there {columns.count(name)} times"
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        hint = "the first line must name the columns"
        yield f"no column {' and no column '.join(map(repr, missing))}: {hint}"


def _csv_row(line: int, columns: Sequence[str], record: Sequence[str]) -> Found:
    values = _trimmed(record)
    if len(values) > len(columns):
        yield Mistake(line, f"{len(values)} values for {len(columns)} columns: quote delimiters")
        return
    pairs = zip(columns, values, strict=False)
    yield from _checked(Row(line, {name: value for name, value in pairs if value}))


# --- JSON lines ----------------------------------------------------------------------------------


class _SaidTwice(ValueError):
    """A name is there twice in an object."""


def _json_rows(text: str) -> Found:
    for number, line in enumerate(text.split("\n"), 1):  # others may stand inside of strings
        if not line.strip():
            continue
        if _is_undecodable(line):
            yield Mistake(number, _undecodable(line))
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except _SaidTwice as error:
            yield Mistake(number, str(error))
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "beyond all limits"
            yield Mistake(number, f"not JSON: {reason} (one object a line is wanted)")
        else:
            yield from _json_row(number, value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _SaidTwice(f"{shown(twice)} is there twice")
    return found


def _json_row(line: int, value: object) -> Found:
    if not isinstance(value, dict):
        yield Mistake(line, f"{_kind(value)} instead of an object")
        return
    values, is_usable = {}, True
    for name, item in value.items():
        if name not in COLUMNS:
            yield Mistake(line, f"unknown field {shown(name)}: there are {', '.join(COLUMNS)}")
        elif isinstance(item, str):
            values[name] = item
        elif item is not None or name in REQUIRED:
            yield Mistake(line, f"{name} is {_kind(item)} instead of a string")
            is_usable = False
    if is_usable:
        yield from _checked(Row(line, {name: item for name, item in values.items() if item}))


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


# --- bytes that are not UTF-8 --------------------------------------------------------------------


def _is_undecodable(text: str) -> bool:
    return re.search("[\udc80-\udcff]", text) is not None


def _undecodable(text: str) -> str:
    match = re.search("[\udc80-\udcff]", text)
    byte = ord(match[0]) - 0xDC00 if match else 0
    return f"not UTF-8 (byte 0x{byte:02x}): save it as UTF-8 (in Excel: 'CSV UTF-8')"
