"""The default room locks, and the protocol for locks of your own, to coordinate processes."""

from meeting_async._delivery.room_locks import LocalRoomLocks, RoomLocks

__all__ = ["LocalRoomLocks", "RoomLocks"]
