"""Faults that strike while a body is still arriving."""

import anyio
import attrs
from attrs.validators import ge, optional
from starlette.types import Message

from ._faults import Cut, Fault


@attrs.frozen(kw_only=True)
class Interruption(Fault):
    """Strikes once ``after`` bytes of the body have arrived, or all of a shorter one.

    For ``stall`` seconds nothing more is read, then the rest; without it the connection is cut.
    """

    after: int = attrs.field(validator=ge(0))
    stall: float | None = attrs.field(default=None, validator=optional(ge(0)))

    def is_due(self, message: Message, arrived: int) -> bool:
        """Whether it strikes when so many bytes have arrived, with ``message`` as the latest."""
        is_last = not message.get("more_body", False)
        return message["type"] == "http.request" and (is_last or arrived >= self.after)

    async def strike(self) -> None:
        """Hold the request up, or end it with `Cut`."""
        if self.stall is None:
            raise Cut
        await anyio.sleep(self.stall)
