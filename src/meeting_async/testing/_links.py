"""Downloading a ``document_link``: asked with HEAD first, then fetched, size limit on the way.

The interface (section 4.2) wants the final, direct, public download link: redirects are therefore
not followed, and nothing authenticates. Proxies of the environment are not used, so that links to
this machine work everywhere. Downloading takes real time, on a virtual clock too.
"""

import functools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote

import anyio
import attrs
import httpx
from anyio.to_thread import run_sync

from ._files import Intake
from ._kinds import is_document

HEAD_SECONDS = 5.0
DOWNLOAD_SECONDS = 180.0
_NO_TIMEOUT = httpx.Timeout(None)  # the two above bound each request as a whole


class LinkError(Exception):
    """Why a link could not be downloaded."""


@attrs.frozen
class Download:
    """A downloaded file: its name from the link's path, declared type, what came in."""

    filename: str
    content_type: str
    intake: Intake


async def download(link: str, *, max_size: int, keep_content: bool) -> Download:
    """Download ``link`` if it is a document of at most ``max_size`` bytes; else `LinkError`."""
    try:
        async with _client() as client:
            with anyio.fail_after(HEAD_SECONDS):
                content_type = await _ask(client, link)
            intake = Intake(keep_content=keep_content)
            with anyio.fail_after(DOWNLOAD_SECONDS):
                await _fetch(client, link, intake, max_size)
            return Download(_name(link), content_type, intake)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise LinkError(f"the link cannot be downloaded: {type(error).__name__}") from error


@asynccontextmanager
async def _client() -> AsyncIterator[httpx.AsyncClient]:
    context = await run_sync(_tls_context)
    headers = {"accept-encoding": "identity"}  # the limit counts the bytes of the document
    async with httpx.AsyncClient(
        verify=context,
        headers=headers,
        timeout=_NO_TIMEOUT,
        trust_env=False,
        follow_redirects=False,
    ) as client:
        yield client


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)  # reads certificates: tens of milliseconds


async def _ask(client: httpx.AsyncClient, link: str) -> str:
    reply = await client.head(link)
    _check_status(reply)
    content_type = reply.headers.get("content-type", "")
    if not is_document(content_type.partition(";")[0].strip().lower()):
        raise LinkError(f"the link is not a supported document: {content_type!r}")
    return str(content_type)


async def _fetch(client: httpx.AsyncClient, link: str, intake: Intake, max_size: int) -> None:
    async with client.stream("GET", link) as reply:
        _check_status(reply)
        async for chunk in reply.aiter_raw():
            intake.write(memoryview(chunk))
            if intake.size > max_size:
                raise LinkError("the linked file is too large")


def _check_status(reply: httpx.Response) -> None:
    if not reply.is_success:
        raise LinkError(f"{reply.request.method} of the link was answered {reply.status_code}")


def _name(link: str) -> str:
    return unquote(httpx.URL(link).raw_path.partition(b"?")[0].rpartition(b"/")[2].decode())
