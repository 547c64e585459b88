"""The default transport, and the types for a transport of your own.

Pass one to the client as ``transport=``.
"""

from meeting_async._http.transport import HttpxTransport, Transport
from meeting_async._models import Body, Reply, Request

__all__ = ["Body", "HttpxTransport", "Reply", "Request", "Transport"]
