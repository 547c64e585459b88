"""Sending requests: transport, origins, connections, and the exchange on one of them.

One upload is ``HttpTransport.send`` → ``Connections.send`` → ``Connection.send`` → ``Exchange.run``
→ ``Stream.push``; the request is an argument all the way.
"""
