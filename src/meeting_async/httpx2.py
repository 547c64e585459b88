"""The default transport on httpx2, the maintained fork of httpx (extra ``httpx2``)."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import httpcore2
import httpx2

from meeting_async._routes import Certificate, Verify
from meeting_async._stack import Stack, stack
from meeting_async._transport import HttpxTransport

__all__ = ["Httpx2Transport"]


class Httpx2Transport(HttpxTransport):
    """As :class:`~meeting_async.HttpxTransport` in everything, but built on httpx2.

    ``client`` is an ``httpx2.AsyncClient``. ``verify=True`` means the authorities httpx2 trusts,
    which on macOS and Windows are the system's.
    """

    _stack: ClassVar[Stack] = stack(httpx2, httpcore2)

    def __init__(
        self,
        client: httpx2.AsyncClient | None = None,
        *,
        verify: Verify = True,
        cert: Certificate | None = None,
        proxy: str | None = None,
        trust_env: bool = False,
        expect_continue: bool = False,
    ) -> None:
        super().__init__(
            cast(Any, client),  # of the same shape
            verify=verify,
            cert=cert,
            proxy=proxy,
            trust_env=trust_env,
            expect_continue=expect_continue,
        )
