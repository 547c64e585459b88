"""The pictures of the README: a batch while it runs, and its report. ``-m benchmarks.pictures``.

Everything in them is measured in one run against the development server on this machine. Writes
``docs/batch/display.svg`` and ``docs/batch/report.html``; if a Chromium is there, also a picture of
the report, ``docs/batch/report.png``.
"""

from __future__ import annotations

import io
import random
import re
import shutil
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import anyio
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from meeting_async import BatchReport, Event, MeetingClient
from meeting_async.cli._batch_display import MARGIN, BatchPicture
from meeting_async.cli._batch_rooms import BatchRooms, Phase
from meeting_async.cli._batch_tally import Tally
from meeting_async.cli._documents import pdf
from meeting_async.cli._inspection import inspect
from meeting_async.cli._manifest import Manifest, manifest_of
from meeting_async.cli._page import page
from meeting_async.testing import MeetingServer

FOLDER = Path(__file__).parent.parent / "docs" / "batch"

ROOMS, DOCUMENTS = 26, 16
SIZES = {48 * 2**10: 12, 300 * 2**10: 5, 3 * 2**20: 2, 24 * 2**20: 1}
"""Bytes of documents, and how often they come."""
NAMES = ("syllabus.pdf", "reading-list.docx", "lecture-{}.pptx", "exercises-{}.pdf", "notes-{}.pdf")
CONCURRENCY = 18
PROCESSING_SECONDS = 0.25
TAKEN_AFTER = 0.4
SENDING = 3
"""When the picture is taken: so many of all documents are over, and so many half sent."""

WIDTH, HEIGHT = 84, 22
"""Columns and lines of the terminal in the picture."""


def main() -> None:
    """Run a batch and draw it."""
    FOLDER.mkdir(exist_ok=True)
    server = MeetingServer(processing_seconds=PROCESSING_SECONDS)
    with tempfile.TemporaryDirectory() as folder, server.run() as url:
        manifest = _manifest(Path(folder))
        _prepare(server, manifest)
        began = datetime.now(UTC)
        svg, report = anyio.run(_upload, server, manifest)
        html = page(
            report,
            title="autumn-term.csv",
            server=url,
            began=began,
            total=len(manifest.entries),
        )
    (FOLDER / "display.svg").write_text(svg, "utf-8")
    (FOLDER / "report.html").write_text(html, "utf-8")
    print(f"{report.total} documents, {report.accepted} accepted, in {report.seconds:.1f} s")
    _photograph(FOLDER / "report.html", FOLDER / "report.png")


def _manifest(folder: Path) -> Manifest:
    """Write documents and a manifest: some rooms get more than others, sizes are mixed."""
    dice = random.Random(5)
    for size in SIZES:
        (folder / f"{size}.pdf").write_bytes(pdf(["A document"], size=size))
    lines = ["room_id,document,filename"]
    for room in range(1, ROOMS + 1):
        for number in range(dice.randrange(DOCUMENTS // 2, DOCUMENTS * 3 // 2)):
            (size,) = dice.choices([*SIZES], [*SIZES.values()])
            name = NAMES[number] if number < 2 else NAMES[2 + number % 3].format(number // 3 + 1)
            lines.append(f"room{room:02},{size}.pdf,{name}")
    (folder / "autumn-term.csv").write_text("\n".join(lines))
    manifest = manifest_of(str(folder / "autumn-term.csv"))
    anyio.run(inspect, manifest, None)
    assert not manifest.flaws, manifest.flaws[:3]
    return manifest


def _prepare(server: MeetingServer, manifest: Manifest) -> None:
    """Make the rooms; some have trouble of their own."""
    for room_id in dict.fromkeys(entry.room_id for entry in manifest.entries):
        server.add_room(room_id)
    server.rooms["room07"].lock(25.0)
    server.rooms["room19"].lock(14.0)
    server.rooms["room23"].active = False


async def _upload(server: MeetingServer, manifest: Manifest) -> tuple[str, BatchReport]:
    """Run the batch, and take a picture on the way."""
    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, force_terminal=True,
        color_system="truecolor", markup=False, highlight=False,
    )  # fmt: skip
    rooms = BatchRooms()
    tally = Tally.of(
        (e.room_id for e in manifest.entries), size=manifest.size, now=time.monotonic()
    )
    picture, shots = BatchPicture(console, tally, rooms), list[str]()

    def hear(event: Event) -> None:
        picture(event)
        if not shots and tally.done >= TAKEN_AFTER * tally.documents and _is_telling(rooms):
            console.print(picture.frame())
            shots.append(_svg(console))

    async with (
        MeetingClient(
            server.url, api_key=server.api_key, api_secret=server.api_secret, on_event=hear
        ) as client,
        client.upload_many(
            [entry.job for entry in manifest.entries],
            concurrency=CONCURRENCY,
            journal=Path(manifest.name).with_name("term.db"),
            wait_active=90.0,
        ) as batch,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_sampling, picture)
        async for outcome in batch:
            picture.over(outcome, manifest.entries[outcome.index].size or 0)
            if tally.done == tally.documents * 4 // 5:
                server.rooms["room23"].active = True
        tasks.cancel_scope.cancel()
    return shots[0], batch.report


def _is_telling(rooms: BatchRooms) -> bool:
    shares = [row.share for row in rooms.visible(HEIGHT - MARGIN) if row.phase is Phase.SENDING]
    return sum(0.1 < share < 0.9 for share in shares) >= SENDING


async def _sampling(picture: BatchPicture) -> None:
    """Draw frames that nobody sees, as the speed is measured between them."""
    while True:
        picture.frame()
        await anyio.sleep(0.2)


def _svg(console: Console) -> str:
    """Export without the font that rich would load from elsewhere."""
    template = re.sub(r"@font-face \{\{.*?\n    \}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    fonts = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
    template = template.replace("font-family: Fira Code, monospace", f"font-family: {fonts}")
    svg = console.export_svg(
        title="meeting-async batch autumn-term.csv --journal term.db",
        theme=DIMMED_MONOKAI,
        code_format=template,
        unique_id="batch",
    )
    assert "url(" not in svg.replace("url(#", "")
    return _BLANKS.sub(_without_blanks, svg)


_COLUMN = 12.2
"""Width of a character in rich's drawings."""
_BLANKS = re.compile(r'x="([\d.]+)"( y="[\d.]+") textLength="([\d.]+)"([^>]*>)((?:&#160;)+)')


def _without_blanks(match: re.Match[str]) -> str:
    """Begin a text where its first character is: some programs drop the blanks before it."""
    shift = len(match[5]) // len("&#160;") * _COLUMN
    x, length = float(match[1]) + shift, float(match[3]) - shift
    return f'x="{x:g}"{match[2]} textLength="{length:g}"{match[4]}'


def _photograph(source: Path, target: Path) -> None:
    browsers = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, browsers)), None)
    if browser is None:
        print("no Chromium: the report was not photographed")
        return
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        "--window-size=1000,1060",
    ]
    command += [f"--screenshot={target}", source.as_uri()]
    subprocess.run(command, check=True, capture_output=True)  # it complains of what nobody needs


if __name__ == "__main__":
    main()
