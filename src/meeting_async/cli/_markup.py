"""Text in a page: file names and servers' messages are hostile until they have been here."""

from __future__ import annotations

import html

from meeting_async.cli._console import printable


def plain(text: str) -> str:
    """Escape one line of text for elements and for attributes in double quotes.

    What steers a terminal or turns the direction of writing around has no business in a page
    either; what is left is also valid in XML.
    """
    return html.escape(printable(text))


def isolated(text: str) -> str:
    """Mark up a name within a sentence; one that is written from right to left stays in place."""
    return f"<bdi>{plain(text)}</bdi>"


def shortened(text: str, length: int) -> str:
    """Cut the middle out of a long name: its end tells documents apart as well as its start."""
    if len(text) <= length:
        return text
    tail = (length - 1) // 2
    return f"{text[: length - 1 - tail]}…{text[-tail:]}"
