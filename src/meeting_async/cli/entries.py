"""What a command line adds to entries: a document on stdin, and telling mistakes."""

from __future__ import annotations

import io
import sys
from functools import partial

from meeting_async import Document
from meeting_async._documents.prepared import check_content
from meeting_async.cli.console import Output
from meeting_async.cli.options import max_size
from meeting_async.cli.words import labelled, without_advice
from meeting_async.errors import InvalidInput
from meeting_async.manifests._entries import Check, Entry, Flaws

FLAWS_SHOWN = 50
"""Mistakes that are printed as text; further ones are only counted."""


class StdinEntry(Entry):
    """A document that is read from stdin."""

    @property
    def place(self) -> str:
        """Its file name, or ``-``."""
        return self.filename or self.target

    def document(self) -> Document:
        """Make the document."""
        stdin = io.FileIO(0, closefd=False)  # a thread that reads sys.stdin blocks the exit
        return Document.from_stream(stdin, self.filename or "")

    def check_document(self, check_content: Check) -> None:
        """Check its name; this reads nothing."""
        if sys.stdin is None:
            raise InvalidInput("FILE", "'-'", "is closed", "open stdin")
        self.document()


def check_of_files() -> Check:
    """Return what an upload with the environment's settings checks of a file."""
    return partial(check_content, max_size=max_size(), allow_images=False)


def tell_flaws(flaws: Flaws, output: Output) -> None:
    """Print mistakes in the order of the input."""
    told = sorted(flaws.found)[: None if output.as_json else FLAWS_SHOWN]
    for _, place, text in told:
        message = without_advice(text)
        if output.as_json:
            output.say_object("mistake", {"place": place, "message": message})
        else:
            output.note(f"error: {labelled(place, message)}")
    if flaws.count > len(told):
        output.note(f"… and {flaws.count - len(told):,} more mistakes")
    output.note("nothing was sent")
