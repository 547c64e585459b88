"""The text of a manifest, line by line: CSV or JSON lines. Bytes in, rows and mistakes out; no I/O.

Whatever the bytes are, nothing is raised: what cannot be used is a mistake with its line.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

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
    first = data[:4096].removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    # Bytes that are not UTF-8 become surrogates here, so that each is reported with its line.
    text = io.TextIOWrapper(
        io.BytesIO(data), encoding="utf-8-sig", errors="surrogateescape", newline=""
    )
    if first == b"{":
        yield from _json_rows(text)
    elif first == b"[":
        fix = "put each object on a line of its own, without brackets and commas"
        yield Mistake(1, f"the manifest is a JSON array: {fix}")
    else:
        yield from _csv_rows(text)


def _checked(line: int, values: Mapping[str, str]) -> Found:
    """Add what is wrong with the values of a row, in whatever format they were written."""
    is_usable = True
    for name in REQUIRED:
        if name not in values:
            yield Mistake(line, f"{name} is empty")
            is_usable = False
    if "\0" in "".join(values.values()):
        yield Mistake(line, "a value contains NUL")
        is_usable = False
    if is_usable:
        yield Row(line, values)


# --- CSV -----------------------------------------------------------------------------------------


def _csv_rows(text: io.TextIOWrapper) -> Found:
    """Read a header line and what follows (RFC 4180; blanks after a delimiter do not count)."""
    delimiter = _delimiter(text)
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    columns: Sequence[str] | None = None
    for line, record in _records(reader):
        if isinstance(record, str):
            yield Mistake(line, record)
            if columns is None:
                return
        elif columns is None:
            columns = _trimmed([name.strip().lower() for name in record])
            yield from (Mistake(line, mistake) for mistake in _header_mistakes(columns))
            if not set(REQUIRED) <= set(columns):
                return
        else:
            yield from _csv_row(line, columns, record)
    if columns is None:
        yield Mistake(1, "the manifest is empty")


def _delimiter(text: io.TextIOWrapper) -> str:
    """Look at the first line that is not blank, and go back to the start."""
    header = next((line for line in _short_lines(text) if line.strip()), "").lower()
    text.seek(0)
    names = re.split(rf'["{_DELIMITERS}\s]+', header)
    return max(_DELIMITERS, key=header.count) if set(names) & set(COLUMNS) else _DELIMITERS[0]


def _short_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield lines that end with any line break, or after 64 KiB."""
    while piece := text.read(65536):
        yield from re.split(r"[\r\n]+", piece)


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
        if bad := _undecodable(record):
            yield line, bad
        elif any(record):  # spreadsheets write lines of delimiters for empty rows
            yield line, record


def _trimmed(record: Sequence[str]) -> Sequence[str]:
    """Drop the empty values at the end, which spreadsheets leave of deleted columns."""
    end = len(record)
    while end and not record[end - 1]:
        end -= 1
    return record[:end]


def _header_mistakes(columns: Sequence[str]) -> Iterator[str]:
    for name in dict.fromkeys(columns):
        if name not in COLUMNS:
            yield f"unknown column {_shown(name)}: there are {', '.join(COLUMNS)}"
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
    yield from _checked(line, {name: value for name, value in pairs if value})


# --- JSON lines ----------------------------------------------------------------------------------


class _GivenTwice(ValueError):
    """A name is there twice in an object."""


def _json_rows(text: io.TextIOWrapper) -> Found:
    text.reconfigure(newline="\n")  # other line breaks may stand inside of strings
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        if bad := _undecodable([line]):
            yield Mistake(number, bad)
            continue
        try:
            value = json.loads(line, object_pairs_hook=_object)
        except _GivenTwice as error:
            yield Mistake(number, str(error))
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is too deep"
            yield Mistake(number, f"not JSON: {reason} (one object a line is expected)")
        else:
            yield from _json_row(number, value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _GivenTwice(f"{_shown(twice)} is there twice")
    return found


def _json_row(line: int, value: object) -> Found:
    if not isinstance(value, dict):
        yield Mistake(line, f"{_kind(value)} instead of an object")
        return
    problems = []
    for name, item in value.items():
        if name not in COLUMNS:
            problems.append(f"unknown field {_shown(name)}: there are {', '.join(COLUMNS)}")
        elif not isinstance(item, str) and (item is not None or name in REQUIRED):
            problems.append(f"{name} is {_kind(item)} instead of a string")
    yield from (Mistake(line, problem) for problem in problems)
    if not problems:
        yield from _checked(line, {name: item for name, item in value.items() if item})


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}…"


# --- bytes that are not UTF-8 --------------------------------------------------------------------


def _undecodable(values: Iterable[str]) -> str | None:
    """Tell what byte of a line is not UTF-8, if one is."""
    text = "".join(values)
    if text.isascii() or not (match := re.search("[\udc80-\udcff]", text)):
        return None
    byte = ord(match[0]) - 0xDC00
    return f"not UTF-8 (byte 0x{byte:02x}): save it as UTF-8 (in Excel: 'CSV UTF-8')"
