"""What is needed of httpx and httpcore is there, and public."""

from __future__ import annotations

import httpcore
import httpx
import pytest

from meeting_async._stack import HTTPX, Core, Stack
from meeting_async.httpx2 import Httpx2Transport

STACKS = {"httpx": HTTPX, "httpx2": Httpx2Transport._stack}
stacks = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())


@stacks
def test_the_core_has_every_class(stack: Stack) -> None:
    """Each is exported, so that it is a promise of theirs."""
    public = getattr(stack.core, "__all__")  # noqa: B009 - a protocol has none
    for name in Core.__annotations__:
        assert name in public
        assert isinstance(getattr(stack.core, name), type)


@stacks
def test_the_client_has_what_is_used(stack: Stack) -> None:
    """Addresses, proxies, certificates, and the class of streams."""
    for name in ("URL", "Proxy", "AsyncByteStream", "UnsupportedProtocol", "create_ssl_context"):
        assert name in stack.client.__all__


def test_the_default_is_httpx() -> None:
    """And its fork shares no class with it."""
    assert (HTTPX.client, HTTPX.core) == (httpx, httpcore)
    other = Httpx2Transport._stack
    assert not set(other.failures.foreign[:10]) & set(HTTPX.failures.foreign[:10])


def test_a_stack_is_one_of_a_kind() -> None:
    """It can be a key, as for what is remembered of it."""
    copy = Stack(HTTPX.client, HTTPX.core, HTTPX.failures)
    assert copy != HTTPX
    assert len({copy, HTTPX, HTTPX}) == 2
