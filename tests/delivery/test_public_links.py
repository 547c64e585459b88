"""``check_link=True``: a link is public, or it is refused before any request is made for it."""

from __future__ import annotations

from typing import Any

import pytest

from meeting_async import Document
from meeting_async.errors import LinkRefused
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import Reply, Request
from support.fake_rooms import FakeRooms, client_of

PRIVATE = [
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "localhost"),
    *("10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "[2002:7f00:1::]", "[::]", "224.0.0.1"),
]


class Links(FakeRooms):
    """Answers HEAD as a file store."""

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        if request.method == "HEAD":
            self.visits.append(request)  # type: ignore[arg-type]  # only counted
            return Reply(200, ((b"Content-Type", b"application/pdf"),))
        return await super().send(request)


async def upload(host: str, **settings: Any) -> list[Any]:
    """Upload a link, and return what was asked for."""
    rooms = Links()
    async with client_of(rooms, check_link=True, **settings) as client:
        document = Document.from_link(f"https://{host}/deck.pdf")
        await client.upload_whiteboard_file("room01", document)
    return rooms.visits


@pytest.mark.parametrize("host", PRIVATE)
def test_addresses_that_are_not_public_are_refused(host: str) -> None:
    """However they are written: nothing is asked, and the reason is the address."""
    with pytest.raises(LinkRefused, match="its host is not public"):
        run_in_virtual_time(upload, host)


@pytest.mark.parametrize("host", ["93.184.215.14", "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]"])
def test_public_addresses_are_asked(host: str) -> None:
    """One HEAD, then the upload as usual."""
    assert len(run_in_virtual_time(upload, host)) == 3
