"""The script of a meeting server: what goes wrong next, in one line each."""

import math

from ._answers import HeaderPairs, LateReply, LostReply, ScriptedRefusal, scripted_reply
from ._faults import UPLOAD_PATH, Faults
from ._interruptions import Interruption


class Script:
    """What happens to the next requests; every method may be called from any thread.

    Requests take the faults in the order in which they were scripted, each the first that is meant
    for it: a fault with a ``path``, a method path such as ``/room/create``, leaves requests to
    others alone. ``times`` is for how many requests it is there.

    On a socket a cut connection is aborted. In process there is none: the caller of the
    application, such as ``httpx.ASGITransport``, gets a `ConnectionResetError`.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def reply_next(
        self,
        status: int,
        *,
        body: bytes = b"",
        json: object = ...,
        headers: HeaderPairs = (),
        path: str | None = None,
        times: int = 1,
        delay: float = 0.0,
    ) -> None:
        """Reply with anything, in place of the normal treatment.

        The reply is given ``delay`` seconds after the whole body was read, without looking at it.
        """
        self._faults.add(
            scripted_reply(
                status,
                body=body,
                json_value=json,
                headers=headers,
                path=path,
                times=times,
                delay=delay,
            )
        )

    def refuse_next(
        self,
        status_code: str,
        *,
        msg: str = "as the script says",
        path: str | None = None,
        times: int = 1,
    ) -> None:
        """Refuse with the server's own record, in place of the normal treatment.

        ``status_code`` is the name of a refusal, such as ``"ROOM_NOT_ACTIVE"``; the HTTP status is
        the one that this server gives it.
        """
        self._faults.add(ScriptedRefusal(status_code=status_code, msg=msg, path=path, times=times))

    def lose_next_reply(self, *, path: str | None = None, times: int = 1) -> None:
        """Treat a request as usual, but cut the connection when its answer is due."""
        self._faults.add(LostReply(path=path, times=times))

    def delay_next_reply(self, seconds: float, *, path: str | None = None, times: int = 1) -> None:
        """Treat a request as usual and answer it ``seconds`` late."""
        self._faults.add(LateReply(seconds=seconds, path=path, times=times))

    def cut_next_upload(self, *, after: int = 0, times: int = 1) -> None:
        """Cut the connection once ``after`` bytes of an upload's body have arrived.

        On a socket some megabytes more may be on their way by then; a document that is smaller
        than what the kernel buffers may be out completely.
        """
        self._faults.add(Interruption(path=UPLOAD_PATH, after=after, times=times))

    def stall_next_upload(
        self, seconds: float = math.inf, *, after: int = 0, times: int = 1
    ) -> None:
        """Read nothing more for so long once ``after`` bytes of an upload's body have arrived.

        The kernel's buffers take some megabytes nevertheless.
        """
        fault = Interruption(path=UPLOAD_PATH, after=after, stall=seconds, times=times)
        self._faults.add(fault)
