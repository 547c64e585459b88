"""Locks of rooms: what to implement to coordinate processes, and the default for one process."""

from meeting_async._delivery.room_locks import LocalRoomLocks, RoomLocks

__all__ = ["LocalRoomLocks", "RoomLocks"]
