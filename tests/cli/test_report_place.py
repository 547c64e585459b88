"""The report of ``batch``: it replaces nothing that is needed, is whole, and is its owner's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.command_line import call, names_in, shell
from support.limited_worker import LimitedWorker, limited_worker

Capture = pytest.CaptureFixture[str]

OLD = '<!DOCTYPE html><meta name="generator" content="meeting-async"><p>last week'
"""An earlier report."""


def contents() -> dict[str, bytes | str]:
    """Return what every file below the working directory holds, and where each link leads."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in Path().rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    """Make manifests, a folder, and other names for them and for the documents."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,b.pdf\nroom03,other.pdf\n")
    Path("m.jsonl").write_text('{"room_id": "room01", "document": "a.pdf"}\n')
    Path("term", "room01").mkdir(parents=True)
    Path("term", "room01", "week.pdf").write_bytes(b"%PDF-1.7")
    Path("other.pdf").symlink_to("c.pdf")
    Path("here").symlink_to(tmp_path)
    Path("manifest.html").symlink_to("m.csv")
    Path("document.html").symlink_to("a.pdf")
    Path("journal.html").symlink_to("j.db")
    Path("linked.db").symlink_to("j.db")
    Path("hard.html").hardlink_to("b.pdf")
    Path("index.html").write_text("<!DOCTYPE html>\n<title>Algebra</title>")
    Path("logo.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    Path("r.html").write_text(OLD)
    Path("r.html").chmod(0o644)


# --- what it would replace -----------------------------------------------------------------------

NEEDED = [
    *(f"m.csv --report {place}" for place in ("m.csv", "./m.csv", "here/m.csv", "manifest.html")),
    *(f"m.csv --report {place}" for place in ("a.pdf", "term/../a.pdf", "document.html")),
    *(f"m.csv --report {place}" for place in ("hard.html", "c.pdf", "other.pdf")),
    *(f"m.csv --report {place}" for place in ("index.html", "logo.svg")),
    "here/m.jsonl --report m.jsonl",
    "m.jsonl --report here/a.pdf",
    "term --report here/term/room01/week.pdf",
    "m.csv --check --report a.pdf",
    # A journal to be, and what will be beside it, though none of that is there yet.
    *(f"m.csv --journal j.db --report {place}" for place in ("j.db", "./j.db-wal")),
    *(f"m.csv --journal j.db --report {place}" for place in ("here/j.db-shm", "journal.html")),
    *(f"m.csv --journal linked.db --report {place}" for place in ("linked.db", "j.db")),
    *(f"m.csv --journal linked.db --report {place}" for place in ("j.db-wal", "here/j.db-shm")),
]


@pytest.mark.parametrize("order", NEEDED)
def test_only_a_report_is_replaced(server: MeetingServer, capsys: Capture, order: str) -> None:
    """No source, document, journal or page of one's own, however it is written (findings 5.5).

    Exit code 2 before anything is sent, and no file has changed.
    """
    before = contents()
    done = call(capsys, "batch", *order.split())
    assert (done.code, server.requests) == (2, [])
    assert "--report" in done.err
    assert "Traceback" not in done.err
    assert contents() == before


@pytest.mark.parametrize("report", ["j.db", "copy.html"])
def test_a_journal_is_not_replaced(server: MeetingServer, capsys: Capture, report: str) -> None:
    """One that has entries: the same documents would be sent again."""
    assert call(capsys, "batch", "m.jsonl", "--journal", "j.db").code == 0
    Path("copy.html").hardlink_to("j.db")
    before, count = contents(), len(server.requests)
    done = call(capsys, "batch", "m.jsonl", "--journal", "j.db", "--report", report)
    assert (done.code, "--report" in done.err) == (2, True)
    assert contents() == before
    assert len(server.requests) == count


# --- how it is written ---------------------------------------------------------------------------


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Take no permission away from new files."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("report", ["r.html", "new.html"])
def test_only_its_owner_may_read_it(server: MeetingServer, capsys: Capture, report: str) -> None:
    """A new one, and one that replaces a report that all could read; nothing else is left."""
    before = set(contents())
    assert call(capsys, "batch", "m.csv", "--report", report).code == 0
    assert stat.S_IMODE(os.stat(report).st_mode) == 0o600
    assert Path(report).read_text().endswith("</html>\n")
    assert set(contents()) == before | {report}
    assert names_in(server, "room01") == ["a.pdf"]


PAGE = "<!DOCTYPE html>"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("rest", ["/dev/stdout >out", "/dev/stdout | cat >out", ">(cat >out)"])
def test_what_cannot_be_replaced_is_written(rest: str) -> None:
    """A pipe, and the command's own output, where the result follows (findings 5.7)."""
    done = shell(f"set -o pipefail; $M batch m.csv --report {rest}; sleep 0.2")
    assert (done.code, "--report" in done.err) == (0, False)
    page = Path("out").read_text()
    assert page.count("3 of 3 documents delivered") >= 1
    assert page.strip().startswith(PAGE)
    assert page.endswith("</html>\n") is (">(" in rest)


nightly = pytest.mark.nightly
MORE = [
    pytest.param(name, limit, marks=nightly)
    for name, limit in [("r.html", 0), ("new.html", 4096), ("new.html", 0)]
]


SLOW = ("anyio._backends._asyncio", "cyclopts", "jinja2", "rich.console", "rich.live", "rich.text")
"""What commands import, of other projects."""


@pytest.fixture(scope="module")
def worker() -> Iterator[LimitedWorker]:
    """Provide a process whose files cannot grow."""
    with limited_worker(*SLOW) as worker:
        yield worker


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("report", "limit"), [("r.html", 4096), *MORE])
def test_a_full_disk_leaves_the_old_report(worker: LimitedWorker, report: str, limit: int) -> None:
    """Whole, and nothing beside it; it is told, and everything was delivered."""
    before = contents()
    told = worker.run_command("batch", "m.csv", "--report", report, limit=limit)
    assert told.code == 0
    assert f"{report} cannot be written: " in told.stderr
    assert "Traceback" not in told.stderr
    assert contents() == before


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("limit", [0, pytest.param(4096, marks=nightly)])
def test_a_kill_leaves_the_old_report(worker: LimitedWorker, limit: int) -> None:
    """Whole; what was written beside it until then only its owner can read."""
    before = contents()
    order = ("batch", "m.csv", "--report", "r.html")
    told = worker.run_command(*order, limit=limit, is_deadly=True, umask=0)
    assert told.status < 0
    after = contents()
    assert {name: after[name] for name in before} == before
    for name in set(after) - set(before):
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o600


@nightly
@pytest.mark.usefixtures("server")
def test_the_journal_of_a_batch_is_private(worker: LimitedWorker) -> None:
    """As its report is, whatever the umask."""
    order = ("batch", "m.csv", "--journal", "j.db", "--report", "new.html")
    assert worker.run_command(*order, umask=0).code == 0
    modes = [stat.S_IMODE(os.stat(name).st_mode) for name in ("j.db", "new.html")]
    assert modes == [0o600] * 2
