"""Compare our small calls with those of others: ``python -m benchmarks.calls``.

In each round every client asks for the same room over and over, one call at a time, then ten, then
a hundred. ``--profile`` says where the time of one of our calls goes instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks import _call_clients, _machine, _options, _profile, _responder
from benchmarks._call_clients import CEILING, COMMUNITY, HTTPX, HTTPX_WIDE, WARM_UP_CALLS
from benchmarks._client import Client
from benchmarks._comparison import Column, Comparison, Target, Task, compare
from benchmarks._job import CallsJob
from benchmarks._measure import Sample
from benchmarks._options import Options
from benchmarks._section import Section

CONCURRENCIES = (1, 10, 100)
SECONDS = 2.0

_NOTES = f"""\
Small calls: getActiveRoomInfo, signed anew and decoded each time; {WARM_UP_CALLS} calls of each worker go before.
Medians over the rounds, with the range; ratios are ours divided by theirs within one round.
More is better for calls/s, less for the rest.
calls/s: from the first call to the last reply. p50, p99: nearest rank of all calls of a sample.
CPU: user and system time of the client per call.
{HTTPX}: httpx.AsyncClient as it is made; {HTTPX_WIDE}: with 100 connections that it keeps.
{COMMUNITY}: used as it is; it opens a session and a connection for each call.
{CEILING}: no client, but what responder and kernel can take; one ready-made request, not decoded.
Responder: {_responder.DESCRIPTION}."""  # noqa: E501 - a line of the report


def task(concurrency: int) -> Task:
    """Return what is compared at so many calls at a time."""
    at_a_time = "one at a time" if concurrency == 1 else f"{concurrency} at a time"
    columns = (
        Column("calls/s", "calls_per_second", 0, lambda s: s.calls / s.seconds, True),
        Column("p50 ms", "p50_ms", 2, lambda s: _ms(s.p50_seconds)),
        Column("p99 ms", "p99_ms", 2, lambda s: _ms(s.p99_seconds)),
        Column("CPU us/call", "cpu_us_per_call", 0, lambda s: s.cpu_seconds / s.calls * 1e6),
    )
    targets = {
        1: (Target("calls_per_second", 1.2, HTTPX),),
        100: (Target("calls_per_second", 30.0, HTTPX_WIDE),),
    }.get(concurrency, ())
    common = Target("calls_per_second", 1.1, COMMUNITY)
    return Task(f"calls-{concurrency}", f"calls, {at_a_time}", columns, (*targets, common))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


# --- running it ----------------------------------------------------------------------------------


def section(concurrencies: Sequence[int], seconds: float, options: Options) -> Section:
    """Compare small calls at each concurrency, for so long."""
    comparisons = [compared(concurrency, seconds, options) for concurrency in concurrencies]
    return Section("calls", "Small calls", _NOTES, tuple(comparisons))


def compared(concurrency: int, seconds: float, options: Options) -> Comparison:
    """Compare small calls, so many at a time."""
    clients = options.chosen(_call_clients.clients(concurrency, install=options.install))

    def sample(client: Client) -> Sample:
        with _responder.running_responder() as responder:
            done = client.measure(CallsJob(responder.base_url, concurrency, seconds))
            calls = done.calls + WARM_UP_CALLS * concurrency
            responder.check_answered(calls=calls, uploads=0, rooms=0)
        return done

    return compare(task(concurrency), clients, sample, options.rounds)


# --- the command line ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its report."""
    name = "python -m benchmarks.calls"
    parser = argparse.ArgumentParser(prog=name, description=(__doc__ or "").partition(":")[0])
    parser.add_argument(
        "--concurrency", type=_options.count, action="append", help="repeat it (1, 10, 100)"
    )
    parser.add_argument("--seconds", type=float, help="of each turn (2; of a profile: 20)")
    parser.add_argument("--profile", action="store_true", help="of our calls, one at a time")
    _options.add(parser)
    _options.add_json(parser)
    found, options = _options.parsed(parser, arguments)
    if found.profile:
        print(_profile.report(found.seconds or 20.0))
        return
    seconds = found.seconds or SECONDS
    concurrencies = tuple(found.concurrency or CONCURRENCIES)
    machine = _machine.facts()
    result = section(concurrencies, seconds, options)
    asked = "".join(f" --concurrency {count}" for count in concurrencies)
    command = f"{name}{asked} --seconds {seconds:g}{options.command}"
    _options.report(result, machine, command, as_json=found.json)


if __name__ == "__main__":
    main()
