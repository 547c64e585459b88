"""What every source promises, by the example of bytes in memory; and what is said of bad reads."""

from __future__ import annotations

import pytest

from meeting_async._limits import HEAD_BYTES
from meeting_async._sources import BytesSource, Measure, checked_bytes, unreadable
from meeting_async.errors import DocumentUnreadable

pytestmark = pytest.mark.anyio

DATA = bytes(range(256)) * 10


async def test_bytes_are_read_afresh_each_time() -> None:
    """Every opening starts at the beginning, whatever became of the last one."""
    async with BytesSource(DATA).held("deck.pdf", None) as content:
        measure = await content.measure()
        assert measure == Measure(len(DATA), DATA[:HEAD_BYTES])
        for _ in range(2):
            async with content.open(measure) as reader:
                assert await reader.read(10) == DATA[:10]
                assert await reader.read(len(DATA)) == DATA[10:]
                assert await reader.read(10) == b""
                await reader.finish()


def test_bytes_are_not_shown() -> None:
    """A document's content stands in no log."""
    assert repr(BytesSource(b"confidential")) == "BytesSource(data=12 bytes)"


@pytest.mark.parametrize("data", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_bytes_of_any_kind_are_bytes(data: object) -> None:
    """What a ``read`` brings is handed on as ``bytes``, a copy if its owner can change it."""
    checked = checked_bytes("deck.pdf", data)
    assert (type(checked), checked) == (bytes, b"abc")


@pytest.mark.parametrize(
    ("data", "said"), [("text", "'text'"), (7, "7"), (None, "None"), ([1], r"\[1\]")]
)
def test_anything_else_is_named(data: object, said: str) -> None:
    """The error says what came instead, and of which document."""
    with pytest.raises(DocumentUnreadable, match=said) as caught:
        checked_bytes("deck.pdf", data)
    assert caught.value.document == "deck.pdf"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(5, "Input/output error"), "Input/output error"),
        (ValueError("I/O operation on closed file"), "I/O operation on closed file"),
        (EOFError(), "EOFError"),
    ],
)
def test_the_reason_is_never_empty(error: Exception, reason: str) -> None:
    """In the words of what failed, or else its name."""
    assert unreadable("deck.pdf", error).reason == reason
