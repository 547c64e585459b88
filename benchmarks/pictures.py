"""The pictures of a batch: while it runs, and its report. ``python -m benchmarks.pictures``.

Everything in them comes from one run against the development server on this machine. Writes
``docs/batch/display.svg`` and, if a Chromium is there, ``docs/batch/report.png``.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group
from rich.terminal_theme import DIMMED_MONOKAI

from meeting_async import BatchReport, BytesSent, Event, MeetingClient, UploadJob
from meeting_async.cli.console import Output
from meeting_async.cli.demo.documents import pdf
from meeting_async.cli.display import Bars
from meeting_async.reports._groups import headline
from meeting_async.reports._page import page
from meeting_async.testing import MeetingServer

FOLDER = Path(__file__).parent.parent / "docs" / "batch"

ROOMS, DOCUMENTS = 26, 16
SIZES = {48 * 2**10: 12, 300 * 2**10: 5, 3 * 2**20: 2, 24 * 2**20: 1}
"""Bytes of documents, and how often they come."""
NAMES = ("syllabus.pdf", "reading-list.docx", "lecture-{}.pptx", "exercises-{}.pdf", "notes-{}.pdf")
CONCURRENCY = 18
PROCESSING_SECONDS = 0.25
TAKEN_AFTER = 0.4
"""Share of the documents that are over when the picture is taken."""
WIDTH, HEIGHT = 68, 20
"""Columns and lines of the terminal in the picture; more would be illegible on a phone."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a batch and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(".")[0])
    parser.add_argument("--save", type=Path, default=FOLDER, metavar="DIR", help=f"({FOLDER})")
    parser.add_argument("--rooms", type=int, default=ROOMS)
    found = parser.parse_args(arguments)
    found.save.mkdir(parents=True, exist_ok=True)
    server = MeetingServer(processing_seconds=PROCESSING_SECONDS)
    with tempfile.TemporaryDirectory() as folder, server.run() as url:
        jobs = _jobs(Path(folder), server, found.rooms)
        began = datetime.now().astimezone()
        svg, report = anyio.run(_upload, server, jobs)
        sums = headline(report, len(jobs))
        html = page(
            report,
            title="term.csv",
            headline=sums,
            documents=len(jobs),
            server=url,
            began=began,
        )
    (found.save / "display.svg").write_text(svg, "utf-8")
    print(f"{report.total} documents, {report.accepted} accepted, in {report.seconds:.1f} s")
    _photograph(html, found.save / "report.png")


def _jobs(folder: Path, server: MeetingServer, rooms: int) -> list[UploadJob]:
    """Make rooms and documents: some rooms get more than others, and some are locked at first."""
    dice = random.Random(5)
    for size in SIZES:
        (folder / f"{size}.pdf").write_bytes(pdf(["A document"], size=size))
    jobs = []
    for number in range(1, rooms + 1):
        room_id = f"room{number:02}"
        room = server.add_room(room_id)
        if number % 12 == 7:
            room.lock(number / 2)
        for n in range(dice.randrange(DOCUMENTS // 2, DOCUMENTS * 3 // 2)):
            (size,) = dice.choices([*SIZES], [*SIZES.values()])
            name = NAMES[n] if n < 2 else NAMES[2 + n % 3].format(n // 3 + 1)
            jobs.append(UploadJob(room_id, folder / f"{size}.pdf", filename=name))
    return jobs


async def _upload(server: MeetingServer, jobs: list[UploadJob]) -> tuple[str, BatchReport]:
    """Run the batch, and take a picture on the way."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, force_terminal=True,
        color_system="truecolor", markup=False, highlight=False,
    )  # fmt: skip
    bars = Bars(Output(), console, len(jobs))
    shots: list[str] = []

    def draw(event: Event) -> None:
        bars(event)
        is_time = bars.report.total >= TAKEN_AFTER * len(jobs)
        if is_time and not shots and _is_sending(event):
            bars.tick()
            console.print(Group(*bars._progress.get_renderables()))  # noqa: SLF001 - one frame
            shots.append(_svg(console))

    async with MeetingClient(
        server.url, api_key=server.api_key, api_secret=server.api_secret, on_event=draw
    ) as client:
        batch = client.upload_many(jobs, concurrency=CONCURRENCY)
        bars.report = batch.report
        bars.tick()  # its times begin
        async with batch:
            await batch.wait()
    return shots[0], batch.report


def _is_sending(event: Event) -> bool:
    """Tell whether a document is half out, so that the picture shows one."""
    if not isinstance(event, BytesSent) or not event.total:
        return False
    return 0.3 < event.sent / event.total < 0.8


def _svg(console: Console) -> str:
    """Export without the font that rich would load from elsewhere."""
    template = re.sub(r"@font-face \{\{.*?\n    \}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    fonts = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
    settings: dict[str, Any] = {
        "title": "meeting-async batch term.csv --journal term.db",
        "theme": DIMMED_MONOKAI,
        "code_format": template.replace(
            "font-family: Fira Code, monospace", f"font-family: {fonts}"
        ),
        "unique_id": "batch",
    }
    return _BLANKS.sub(_without_blanks, console.export_svg(**settings))


_COLUMN = 12.2
"""Width of a character in rich's drawings."""
_BLANKS = re.compile(r'x="([\d.]+)"( y="[\d.]+") textLength="([\d.]+)"([^>]*>)((?:&#160;)+)')


def _without_blanks(match: re.Match[str]) -> str:
    """Begin a text where its first character is: some programs drop the blanks before it."""
    shift = len(match[5]) // len("&#160;") * _COLUMN
    x, length = float(match[1]) + shift, float(match[3]) - shift
    return f'x="{x:g}"{match[2]} textLength="{length:g}"{match[4]}'


def _photograph(html: str, target: Path) -> None:
    browsers = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, browsers)), None)
    if browser is None:
        print("no Chromium: no picture of the report")
        return
    options = [
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        "--window-size=480,800",
        "--force-device-scale-factor=2",
    ]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "report.html")
        source.write_text(html, "utf-8")
        command = [browser, *options, f"--screenshot={target}", source.as_uri()]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
