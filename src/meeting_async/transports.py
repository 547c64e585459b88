"""How requests reach the server: the default transport, and what a transport of yours needs.

Pass one to the client as ``transport=``.
"""

from meeting_async._http.transport import HttpxTransport, Transport
from meeting_async._models import Body, Reply, Request

__all__ = ["Body", "HttpxTransport", "Reply", "Request", "Transport"]
