"""Links: downloading a ``document_link``, and files to try links out with.

A link is asked with HEAD first, then fetched. ``docs/interface.md`` (Upload) wants the final,
direct, public download link: so redirects are not followed, and nothing authenticates. Proxies of
the environment are not used, so that links to this machine work everywhere. Downloading takes real
time, on a virtual clock too.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from urllib.parse import quote, unquote

import anyio
import attrs
import httpx
from anyio.to_thread import run_sync

from meeting_async.testing._files import Intake, Part, kind_of_media_type, media_type_of
from meeting_async.testing._messages import Reply

HEAD_SECONDS = 5.0
DOWNLOAD_SECONDS = 180.0
HOSTED_PATH = "/files/"


class LinkError(Exception):
    """Why a link could not be downloaded."""


async def download(link: str, *, kinds: Collection[str], max_size: int, keep_content: bool) -> Part:
    """Download ``link`` if it declares one of ``kinds`` and has at most ``max_size`` bytes.

    Raises:
        LinkError: Otherwise.

    """
    intake = Intake(keep_content=keep_content)
    try:
        async with _client() as client:
            with anyio.fail_after(HEAD_SECONDS):
                content_type = await _ask(client, link, kinds)
            with anyio.fail_after(DOWNLOAD_SECONDS):
                await _fetch(client, link, intake, max_size)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise LinkError(f"the link cannot be downloaded: {type(error).__name__}") from error
    path = httpx.URL(link).raw_path.partition(b"?")[0]
    name = unquote(path.rpartition(b"/")[2].decode())
    return Part("document_link", name, content_type, intake)


@asynccontextmanager
async def _client() -> AsyncIterator[httpx.AsyncClient]:
    context = await run_sync(_tls_context)
    async with httpx.AsyncClient(
        verify=context,
        headers={"accept-encoding": "identity"},  # the limit counts the bytes of the document
        timeout=None,  # noqa: S113 - the two limits above are for each request as a whole
        trust_env=False,
        follow_redirects=False,
    ) as client:
        yield client


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)  # reads certificates: tens of milliseconds


async def _ask(client: httpx.AsyncClient, link: str, kinds: Collection[str]) -> str:
    reply = await client.head(link)
    _check_status(reply)
    content_type = str(reply.headers.get("content-type", ""))
    if kind_of_media_type(content_type) not in kinds:
        raise LinkError(f"the link is not a supported document: {content_type!r}")
    return content_type


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


@attrs.frozen
class HostedFile:
    """A file for GET and, unless ``head`` is false, for HEAD."""

    data: bytes = attrs.field(repr=False)
    content_type: str
    head: bool


@attrs.define(eq=False)
class HostedFiles:
    """Files that the server itself offers for download, without a key."""

    _files: dict[str, HostedFile] = attrs.field(factory=dict, init=False)

    def add(self, name: str, data: bytes, content_type: str | None, *, head: bool) -> str:
        """Offer ``data`` and return the path of its URL; a second file of a name is another one."""
        kind = media_type_of(name) if content_type is None else content_type
        path = f"{HOSTED_PATH}{len(self._files) + 1}/{name}"
        self._files[path] = HostedFile(data, kind, head)
        return quote(path)

    def answer(self, method: str, path: str) -> Reply:
        """Answer GET and HEAD; 403 to a HEAD as storage does whose links are signed for GET."""
        file = self._files.get(path)
        if file is None or method not in {"GET", "HEAD"}:
            return Reply.plain(404)
        if method == "HEAD" and not file.head:
            return Reply.plain(403)
        headers = (("content-type", file.content_type),) if file.content_type else ()
        return Reply(200, file.data, headers)
