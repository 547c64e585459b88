"""``meeting-async check``: what works between here and the server, and what to fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meeting_async.cli.options import Checking, Printed

if TYPE_CHECKING:
    from meeting_async import CheckResult, MeetingClient, ServerCheck


_DEFAULTS = Checking()


def check(room_id: str | None = None, /, *, common: Checking = _DEFAULTS, output: Printed) -> int:
    """Check server, certificate, key and secret, step by step, and a room if you give one.

    The exit code is 1 if a step failed.

    Args:
        room_id: A room to check, too: is it active, and free for an upload?
        common: Options of this command.
        output: Where to print.

    """
    import anyio
    import attrs

    found = anyio.run(_check, common.client(), room_id)
    if output.as_json:
        findings = {name: attrs.asdict(finding) for name, finding in found.findings.items()}
        output.say_object("server_check", {"ok": found.ok, "findings": findings})
    else:
        for name, finding in found.findings.items():
            if finding.status == "failed" or not common.quiet:
                output.tell(_line(name, finding))
    return output.code() if found.ok else 1


async def _check(client: MeetingClient, room_id: str | None) -> ServerCheck:
    async with client:
        return await client.check(room_id)


def _line(name: str, finding: CheckResult) -> str:
    fix = f": {finding.fix}" if finding.fix else ""
    return f"{name.replace('_', ' '):<12} {finding.status:<12} {finding.detail}{fix}"
