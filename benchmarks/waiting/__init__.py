"""Waiting for a locked room, simulated: the real decisions of the client in virtual time."""
