"""Replies in the server's own record (interface section 2): status, msg, status_code."""

from starlette.responses import JSONResponse

UPLOADED = "file uploaded successfully"


class Refusal(Exception):
    """A request that the server refuses: HTTP status, ``status_code`` name and message."""

    def __init__(self, http_status: int, status_code: str, msg: str) -> None:
        super().__init__(http_status, status_code, msg)
        self.http_status = http_status
        self.status_code = status_code
        self.msg = msg


def success(msg: str, **fields: object) -> JSONResponse:
    """Answer 200 with the server's own record and the further ``fields`` of one endpoint."""
    record = {"status": True, "msg": msg, "status_code": "SUCCESS"}
    return JSONResponse(record | fields)


def failure(http_status: int, status_code: str, msg: str) -> JSONResponse:
    """Answer ``http_status`` with the server's own record and ``status`` false."""
    record = {"status": False, "msg": msg, "status_code": status_code}
    return JSONResponse(record, status_code=http_status)
