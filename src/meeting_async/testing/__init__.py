"""A meeting server for development and tests (extra ``testing``).

It is a real HTTP server that speaks the whole interface, on a loopback socket or in process::

    server = MeetingServer()
    room = server.add_room("room01")
    with server.run() as url:
        ...  # talk to url with any client, signed with server.api_key and server.api_secret
    assert room.received[0].name == "deck.pdf"

Nothing in this package imports the client, nor does the client import it: signatures, forms and
replies are made and read by separate code on each side, so that one bug cannot hide another.
"""

try:
    import python_multipart as _python_multipart
    import starlette as _starlette
    import uvicorn as _uvicorn
except ImportError as _error:
    raise ImportError(
        "meeting_async.testing needs Starlette, uvicorn and python-multipart: "
        'pip install "meeting-async[testing]"'
    ) from _error

from ._files import ReceivedFile
from ._requests import RecordedRequest
from ._rooms import Room
from ._server import MeetingServer
from ._settings import Settings

__all__ = [
    "MeetingServer",
    "ReceivedFile",
    "RecordedRequest",
    "Room",
    "Settings",
]

del _python_multipart, _starlette, _uvicorn
