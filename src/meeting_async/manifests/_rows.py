"""Parsing a manifest, CSV or JSON lines: bytes in, rows and mistakes out; no I/O.

Nothing is raised, whatever the bytes are: a line that cannot be used is returned as a mistake.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping

COLUMNS = ("room_id", "document", "filename", "key")
REQUIRED = ("room_id", "document")

Row = Mapping[str, str]
"""The values of a line by column; empty values are left out."""

Mistake = str
"""Why a line cannot be used."""


def rows_in(data: bytes) -> Iterator[tuple[int, Row | Mistake]]:
    """Yield each row or mistake with the number of its first line, from 1.

    The first character decides the format.
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = 1 + data[: error.start].count(b"\n")
        byte = f"byte 0x{data[error.start]:02x}"
        yield line, f"not UTF-8 ({byte}): save it as UTF-8 (in Excel: 'CSV UTF-8')"
        return
    data = data.removeprefix(codecs.BOM_UTF8)
    is_json = data.lstrip()[:1] in {b"{", b"["}
    for line, found in _json_lines(data) if is_json else _csv_lines(data):
        if isinstance(found, str):
            yield line, found
        elif mistakes := [*_mistakes(found)]:
            yield from ((line, mistake) for mistake in mistakes)
        else:
            yield line, {name: value for name, value in found.items() if value}


Line = tuple[int, dict[str, str] | Mistake]


def _mistakes(values: Mapping[str, object]) -> Iterator[Mistake]:
    for name, value in values.items():
        if name not in COLUMNS:
            yield f"unknown name {name[:100]!r}: use {', '.join(COLUMNS)}"
        elif not isinstance(value, str | None):
            yield f"{name} is not a string"
        elif "\0" in (value or ""):
            yield f"{name} contains NUL"
    yield from (f"{name} is empty" for name in REQUIRED if not values.get(name))


# --- CSV -----------------------------------------------------------------------------------------


_SEPARATOR = re.compile(rb'"?sep=([^\w\s"]|\t)"?[,;\t]*(?=[\r\n]|$)', re.IGNORECASE)
"""A first line that says how values are separated: Excel reads it, and programs write it for it."""


def _csv_lines(data: bytes) -> Iterator[Line]:
    """Read the header and the records (RFC 4180; spaces after a delimiter are ignored)."""
    told = _SEPARATOR.match(data)
    data = data[told.end() if told else 0 :]  # its line stays, empty
    header = re.search(rb"\S[^\r\n]*", data)
    # Excel uses the list separator of its locale. If several are equally frequent: the first.
    delimiter = (
        told[1].decode()
        if told
        else max(",;\t", key=lambda c: header[0].count(c.encode()) if header else 0)
    )
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    columns: list[str] = []
    line = 1
    try:
        for record in reader:
            if not any(record):  # spreadsheets write only delimiters for an empty row
                pass
            elif columns:
                yield line, _csv_row(columns, record)
            else:
                columns = [name.strip().lower() for name in record]
                if not _are_columns([name for name in columns if name]):
                    given, usable = ", ".join(columns)[:200], ", ".join(COLUMNS)
                    yield line, f"the first line must name the columns ({usable}), not {given!r}"
                    return
            line = reader.line_num + 1
    except csv.Error as error:
        reason = str(error).replace("unexpected end of data", "a quote is not closed")
        yield line, f"not CSV: {reason}"
    if not columns:
        yield 1, "the manifest is empty"


def _are_columns(names: list[str]) -> bool:
    are_known = set(REQUIRED) <= set(names) <= set(COLUMNS)
    return are_known and len(set(names)) == len(names)


def _csv_row(columns: list[str], record: list[str]) -> dict[str, str] | Mistake:
    if any(record[len(columns) :]):
        return f"{len(record)} values for {len(columns)} columns: quote values that have delimiters"
    return {name: value for name, value in zip(columns, record, strict=False) if name or value}


# --- JSON lines ----------------------------------------------------------------------------------


def _json_lines(data: bytes) -> Iterator[Line]:
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode(), object_pairs_hook=_object)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            yield number, f"not JSON: {reason} (each line must be a JSON object)"
        else:
            yield number, value if isinstance(value, dict) else "each line must be a JSON object"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name appears twice")
    return found
