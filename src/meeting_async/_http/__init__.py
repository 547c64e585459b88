"""Sending requests: transport, origins, connections, and one request on a connection.

One upload is ``HttpTransport.send`` → ``Connections.send`` → ``Connection.send`` → ``Stream.push``;
the request is an argument all the way.
"""
