"""What type checkers see of the public names. Not run: mypy and pyright read it.

An ignored error that no longer is one fails, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, assert_type

from meeting_async import (
    ActiveRoom,
    BatchReport,
    CheckResult,
    Document,
    MeetingClient,
    UploadJob,
    UploadOutcome,
    UploadReceipt,
    Verdict,
    errors,
    sync,
)
from meeting_async.manifests import read_manifest
from meeting_async.reports import html_report, write_report
from meeting_async.transports import HttpTransport, Reply, Request, Transport


async def calls(client: MeetingClient, chunks: AsyncIterator[bytes]) -> None:
    """Every method returns what its page says, and takes every kind of document."""
    assert_type(await client.get_active_room_info("room01"), ActiveRoom)
    assert_type(await client.wait_until_active("room01", 60), ActiveRoom)
    assert_type(await client.wait_until_active("room01"), ActiveRoom)
    assert_type(await client.call("room/list"), dict[str, Any])
    assert_type((await client.check("room01", timeout=3)).secret, CheckResult)
    receipt = await client.upload_whiteboard_file("room01", "deck.pdf", timeout=None)
    assert_type(receipt, UploadReceipt)
    assert_type(receipt.attempts[-1].verdict, Verdict)
    with open("deck.pdf", "rb") as file:  # noqa: ASYNC230 - never run
        await client.upload_whiteboard_file("room01", file)
    await client.upload_whiteboard_file("room01", b"%PDF", filename="deck.pdf")
    await client.upload_whiteboard_file("room01", chunks, filename="deck.pdf")
    await client.upload_whiteboard_file("room01", Document.from_link("https://f.test/a.pdf"))
    await client.upload_whiteboard_file("room01", 17)  # type: ignore[arg-type]


async def batches(client: MeetingClient) -> None:
    """A batch iterates over outcomes."""
    async with client.upload_many([UploadJob("room01", "deck.pdf")], concurrency=4) as batch:
        async for outcome in batch:
            assert_type(outcome, UploadOutcome)
        assert_type(batch.report, BatchReport)
    assert_type(read_manifest(Path("term.csv"), max_size_whiteboard_file="30MiB"), list[UploadJob])
    assert_type(html_report(batch.report, title="term.csv", server="https://meet.test"), str)
    write_report(batch.report, "term.html", title="term.csv")
    read_manifest("term.csv", max_size="30MiB")  # type: ignore[call-arg]
    client.upload_many(["deck.pdf"])  # type: ignore[list-item]


def settings(client: MeetingClient) -> None:
    """Options are spelled: a checker finds one that does not exist."""
    assert_type(client.with_options(delivery="at_least_once"), MeetingClient)
    assert_type(MeetingClient.from_env(allow_images=True), MeetingClient)
    assert_type(client.with_options(timeout=3), MeetingClient)
    client.with_options(deadline=3)  # type: ignore[call-arg]
    client.with_options(delivery="twice")  # type: ignore[arg-type]
    MeetingClient.from_env(timeot=3)  # type: ignore[call-arg]


def threads(client: sync.MeetingClient, chunks: Iterator[bytes]) -> None:
    """The client for threads has the same parameters and results."""
    assert_type(sync.MeetingClient("https://meet.test", timeout=3), sync.MeetingClient)
    assert_type(sync.MeetingClient.from_env(allow_images=True), sync.MeetingClient)
    assert_type(client.with_options(delivery="at_least_once"), sync.MeetingClient)
    assert_type(client.get_active_room_info("room01"), ActiveRoom)
    assert_type(client.wait_until_active("room01", 60), ActiveRoom)
    assert_type(client.call("room/list"), dict[str, Any])
    assert_type(client.check("room01", timeout=3).secret, CheckResult)
    assert_type(client.upload_whiteboard_file("room01", chunks, filename="a.pdf"), UploadReceipt)
    with client as same, same.upload_many([UploadJob("room01", "deck.pdf")]) as batch:
        assert_type(same, sync.MeetingClient)
        for outcome in batch:
            assert_type(outcome, UploadOutcome)
        assert_type(batch.wait(), BatchReport)
    client.upload_whiteboard_file("room01", 17)  # type: ignore[arg-type]
    client.upload_many(["deck.pdf"])  # type: ignore[list-item]
    client.with_options(deadline=3)  # type: ignore[call-arg]
    sync.MeetingClient("https://meet.test", timeot=3)  # type: ignore[call-arg]


async def implementers(transport: Transport, request: Request) -> None:
    """The protocols that others implement."""
    assert_type(await transport.send(request), Reply)
    mine: Transport = HttpTransport()
    await mine.aclose()


def failures(error: errors.MeetingError) -> None:
    """Errors have their facts as attributes."""
    assert_type(error.room_id, str | None)
    if isinstance(error, errors.UploadOutcomeUnknown):
        assert_type(error.lock_free_in, float)
