"""A meeting server for development and tests (extra ``testing``).

It is a real HTTP server that speaks the whole interface, on a loopback socket or in process::

    server = MeetingServer()
    room = server.add_room("room01")
    with server.run() as url:
        ...  # talk to url with any client, signed with server.api_key and server.api_secret
    assert room.received[0].name == "deck.pdf"

This package and the client do not import each other: each has its own code for signatures, forms
and replies, so that one bug cannot hide another.
"""

try:
    import h11 as _h11
    import python_multipart as _python_multipart
except ModuleNotFoundError as _error:
    _hint = f'meeting_async.testing needs {_error.name}: pip install ".[testing]" in a clone'
    raise ModuleNotFoundError(_hint, name=_error.name) from _error

from meeting_async.testing._application import RecordedRequest
from meeting_async.testing._files import ACCEPTED_KINDS
from meeting_async.testing._rooms import ReceivedFile, Room
from meeting_async.testing._server import MeetingServer
from meeting_async.testing._virtual_time import VirtualTimeLoop, run_in_virtual_time

__all__ = [
    "ACCEPTED_KINDS",
    "MeetingServer",
    "ReceivedFile",
    "RecordedRequest",
    "Room",
    "VirtualTimeLoop",
    "run_in_virtual_time",
]

del _h11, _python_multipart
