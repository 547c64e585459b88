"""Scripted faults: what happens to the next requests instead of the normal treatment."""

import threading
from typing import Self, TypeVar

import attrs
from attrs.validators import ge

BASE_PATH = "/auth"
UPLOAD_PATH = "/room/uploadWhiteboardFile"


class Cut(ConnectionResetError):
    """Ends a request without an answer: on a socket the connection goes, in process this does."""

    def __init__(self) -> None:
        super().__init__("the meeting server cut the connection, as its script says")


def _method_path_or_none(path: str | None) -> str | None:
    return None if path is None else method_path(path)


@attrs.frozen(kw_only=True)
class Fault:
    """Something that happens to the next ``times`` requests to ``path`` (None: to any)."""

    path: str | None = attrs.field(default=None, converter=_method_path_or_none)
    times: int = attrs.field(default=1, validator=ge(1))

    def meets(self, path: str) -> bool:
        """Whether it is meant for a request to ``path``."""
        return self.path in {None, method_path(path)}

    def once_less(self) -> list[Self]:
        """Return what is left of it when one request has met it."""
        return [attrs.evolve(self, times=self.times - 1)] if self.times > 1 else []


F = TypeVar("F", bound=Fault)


@attrs.define(eq=False)
class Faults:
    """The queue of scripted faults, first come first served; usable from any thread."""

    _queue: list[Fault] = attrs.field(factory=list, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def add(self, fault: Fault) -> None:
        """Append ``fault`` to the queue."""
        with self._guard:
            self._queue.append(fault)

    def take(self, path: str, kind: type[F]) -> F | None:
        """Return the fault that comes next for a request to ``path``, if it is of this kind."""
        with self._guard:
            for index, fault in enumerate(self._queue):
                if fault.meets(path):
                    if not isinstance(fault, kind):
                        return None
                    self._queue[index : index + 1] = fault.once_less()
                    return fault
        return None


def method_path(path: str) -> str:
    """Return ``path`` as the interface writes method paths: ``/room/…``, without ``/auth``."""
    return "/" + path.strip("/").removeprefix(BASE_PATH.strip("/") + "/")
