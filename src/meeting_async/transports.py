"""The default transport, one for your own httpx client, and the types for one that you write.

Pass one to the client as ``transport=``.
"""

from meeting_async._http.httpx import HttpxTransport
from meeting_async._http.transport import HttpTransport, Transport
from meeting_async._models import Body, Reply, Request

__all__ = ["Body", "HttpTransport", "HttpxTransport", "Reply", "Request", "Transport"]
