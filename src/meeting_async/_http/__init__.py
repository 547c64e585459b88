"""Sending requests: transport, origins, connections, the socket.

One upload is ``HttpxTransport.send`` → ``Connections.send`` → ``Connection.send`` →
``SocketStream.write``; the request is an argument all the way.
"""
