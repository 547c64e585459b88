"""Files that the server itself offers for download, so that links can be tried out."""

import mimetypes
from urllib.parse import quote

import attrs
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

HOSTED_PATH = "/files"


@attrs.frozen
class HostedFile:
    """A file for GET and, unless ``head`` is false, for HEAD."""

    data: bytes = attrs.field(repr=False)
    content_type: str
    head: bool


@attrs.define(eq=False)
class HostedFiles:
    """The hosted files by their path below `HOSTED_PATH`; nobody is asked for a key."""

    _files: dict[str, HostedFile] = attrs.field(factory=dict, init=False)

    def add(self, name: str, data: bytes, content_type: str | None, *, head: bool) -> str:
        """Offer ``data`` and return the path of its URL; a second file of a name is another one."""
        if content_type is None:
            content_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        path = f"{len(self._files) + 1}/{name}"
        self._files[path] = HostedFile(data, content_type, head)
        return f"{HOSTED_PATH}/{quote(path)}"

    async def answer(self, request: Request) -> Response:
        """Answer GET and HEAD; 403 to a HEAD as storage does whose links are signed for GET."""
        file = self._files.get(request.path_params["path"])
        if file is None:
            return PlainTextResponse("Not Found", status_code=404)
        if request.method == "HEAD" and not file.head:
            return PlainTextResponse("Forbidden", status_code=403)
        headers = {"content-type": file.content_type} if file.content_type else {}
        return Response(file.data, headers=headers)
