"""What an upload needs in a web application: an answer for the browser, and time to end.

:func:`http_answer` makes an HTTP status and a JSON object of a receipt or an error, for any
framework. :class:`Uploads` is an ASGI middleware: uploads outlive their requests, and shutdown
waits for them. Guide: ``docs/frameworks.md``.
"""

from meeting_async.web._answers import HttpAnswer, http_answer, public_detail, public_name
from meeting_async.web._uploads import Uploads

__all__ = ["HttpAnswer", "Uploads", "http_answer", "public_detail", "public_name"]
