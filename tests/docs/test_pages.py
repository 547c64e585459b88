"""The pages: tables equal the code, figures were measured, and the site has every public name."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import attrs
import pytest

import meeting_async
from meeting_async import Event, LockPolicy, MeetingClient, RetryPolicy, Timeouts, errors
from meeting_async._batch.sqlite_journal import VERSION as JOURNAL
from meeting_async._client import ClientOptions
from meeting_async._delivery.session import Options
from meeting_async.procrastinate import SCHEMA, WhiteboardUploads
from meeting_async.redis import RedisRoomLocks
from meeting_async.transports import HttpTransport
from meeting_async.web._answers import _ANSWERS
from support.programs import dom_of, needs_browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# --- tables --------------------------------------------------------------------------------------


def rows(page: str, heading: str = "", start: str = "| `") -> list[list[str]]:
    """Return the cells of the rows that begin so, below a heading or of a whole page."""
    text = (DOCS / page).read_text("utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in row] for row in cells]


def documented(heading: str) -> dict[str, object]:
    """Return the settings of a table with their defaults, from cells such as `name=1`."""
    cells = [row[0].strip("`").partition("=") for row in rows("settings.md", heading)]
    return {
        name: ast.literal_eval(default) if equals else inspect.Parameter.empty
        for name, equals, default in cells
    }


def defaults(function: Callable[..., object]) -> dict[str, object]:
    """Return the arguments of a function or class with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.name != "self"}


SETTINGS: list[Callable[..., object]] = [
    *(Timeouts, RetryPolicy, LockPolicy, MeetingClient.upload_many, HttpTransport),
    *(RedisRoomLocks, WhiteboardUploads),
]


@pytest.mark.parametrize("code", SETTINGS, ids=lambda code: code.__name__)
def test_settings_equal_the_code(code: Callable[..., object]) -> None:
    """A table of settings has each setting with its default, in the order of the code."""
    assert list(documented(code.__name__).items()) == list(defaults(code).items())


def test_settings_of_the_client() -> None:
    """Two tables have the constructor's arguments; the second one those of ``with_options``."""
    fixed, options = documented("MeetingClient"), documented("Options of a client")
    arguments = defaults(MeetingClient)
    assert arguments.pop("options") is inspect.Parameter.empty
    assert fixed == arguments
    assert options == {field.name: field.default for field in attrs.fields(Options)}
    assert list(options) == list(ClientOptions.__annotations__)


def test_environment_variables() -> None:
    """The page has the variables that are read."""
    seen = []

    class Variables(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            seen.append(name)
            return default

    with pytest.raises(errors.ConfigurationError):  # none is set
        MeetingClient.from_env(Variables())
    assert sorted(set(seen)) == sorted(
        row[0].strip("`") for row in rows("settings.md", "Environment variables")
    )


def test_events_equal_the_code() -> None:
    """The table has every event with its own fields."""
    common = {field.name for field in attrs.fields(Event)}
    expected = {
        kind.__name__: [field.name for field in attrs.fields(kind) if field.name not in common]
        for kind in Event.__subclasses__()
    }
    found = {name.strip("`"): re.findall(r"`(\w+)`", own) for name, _, own in rows("events.md")}
    assert found == expected
    assert all(f"`{name}`" in (DOCS / "events.md").read_text("utf-8") for name in common)


def error_names() -> set[str]:
    """Return the names of all errors."""
    return {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.MeetingError)
    }


def test_statuses_equal_the_code() -> None:
    """The page of web frameworks has each error of ``http_answer``, with its status."""
    cells = [row for row in rows("frameworks.md", "Errors", start="| ") if row[0].isdigit()]
    shown = [(int(row[0]), name) for row in cells for name in re.findall(r"`([A-Z]\w+)`", row[1])]
    for status, name in shown:
        error = getattr(errors, name)
        assert status == next(code for kind, code, _ in _ANSWERS if issubclass(error, kind)), name
    # Two are base classes of others in the table.
    known = {kind.__name__ for kind, *_ in _ANSWERS} - {"DocumentError", "ReplyError"}
    assert known <= {name for _, name in shown}


def test_every_error_has_advice() -> None:
    """The tables name errors that exist, and all of them, except two base classes."""
    first_cells = " ".join(row[0] for row in rows("errors.md"))
    named = set(re.findall(r"`([A-Z]\w+)`", first_cells))
    assert named <= error_names()
    # ServerFailed has a sentence, not a row.
    assert error_names() - named == {"MeetingError", "ReplyError", "ServerFailed"}


def test_formats_of_this_version() -> None:
    """The page of versions and that of the queue have the formats that this version reads."""
    page = (DOCS / "versions.md").read_text("utf-8")
    table = re.search(r"meeting-async, version (\d+)", SCHEMA)
    assert table
    assert re.findall(r"format (\d+)", page) == [str(JOURNAL)]
    assert re.findall(r"table of version (\d+)", page) == [table[1]]
    assert f"has its version, now {table[1]} (" in (DOCS / "queue.md").read_text("utf-8")


def test_the_house_is_drawn_from_its_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is that of today; `python docs/house.py` draws it."""
    monkeypatch.syspath_prepend(DOCS)
    house = importlib.import_module("house")
    shown = (DOCS / "contributing.md").read_text("utf-8").partition(house.FENCE)[2]
    assert shown.partition("```")[0] == house.picture()


def test_every_page_has_a_sentence_on_the_first_one() -> None:
    """The index links each page, in its text and in the navigation, with the page's own words."""
    index = (DOCS / "index.md").read_text("utf-8")
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    pages = {page for page in pages if not page.startswith("reference/")} - {"index"}
    pages.add("reference/index")
    assert set(re.findall(r"^\* \[[^]]+\]\((\S+)\.md\)", index, re.MULTILINE)) == pages
    assert set(re.findall(r"^([\w/-]+)$", index, re.MULTILINE)) == pages
    for words, page in re.findall(r"^\* \[([^]]+)\]\((\S+\.md)\)", index, re.MULTILINE):
        path = ROOT / "CHANGELOG.md" if page == "changelog.md" else DOCS / page
        assert path.read_text("utf-8").startswith(f"# {words}"), page


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.stem)
def test_pictures_are_legible_on_a_phone(path: Path) -> None:
    """The smallest text has at least 7.5 pixels where the picture has 358."""
    picture = path.read_text("utf-8")
    (width,) = re.findall(r'^<svg[^>]* viewBox="0 0 ([\d.]+) ', picture)
    sizes = re.findall(r"(?:font:|font-size: ?)([\d.]+)px", picture)
    assert min(map(float, sizes)) * 358 / float(width) >= 7.5


# --- the changelog -------------------------------------------------------------------------------


def test_the_changelog_has_the_version() -> None:
    """The newest version in it is the one that is installed."""
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.findall(r"\[(\d[^\]]*)\]", changelog)[0] == meeting_async.__version__


# --- figures -------------------------------------------------------------------------------------

SPEED = (ROOT / "README.md").read_text("utf-8").split("\n## Speed\n")[1].split("\n## ")[0]
RUN = (DOCS / "benchmarks" / "README.md").read_text("utf-8")
TASKS = {
    "1,000 uploads of 64 KiB at once": "1000 uploads of 64 KiB at once",
    "small calls, one at a time": "calls, one at a time",
    "small calls, 100 at a time": "calls, 100 at a time",
}
"""What the README calls a task, and what the run does, where they differ."""
PEERS = {"curl": "curl", "httpx `files=`": "httpx files=", "bare aiohttp": "aiohttp "}
"""Columns of the README, and how rows of the run begin."""


def test_the_figures_of_the_readme_are_measured() -> None:
    """As the run has them, rounded to two digits; where less is better, turned round."""
    lines = [line.strip("|").split("|") for line in SPEED.splitlines() if line.startswith("|")]
    (_, *peers), _, *body = [[cell.strip() for cell in line] for line in lines]
    cells = [
        (row[0].split(", with", maxsplit=1)[0], peer, cell.split()[0])
        for row in body
        for peer, cell in zip(peers, row[1:], strict=True)
        if cell
    ]
    for task, peer, factor in cells:
        section = RUN.split(f"\n### {TASKS.get(task, task)}\n")[1].split("\n### ")[0]
        (unit,) = re.findall(r" ([^|]+), ours / theirs \|$", section, re.MULTILINE)
        row = re.search(rf"^\| {PEERS[peer]}.*\| ([0-9.]+) x \(", section, re.MULTILINE)
        assert row is not None, (task, peer)
        ratio = float(row[1])
        speed = 1 / ratio if unit == "seconds" else ratio
        assert float(factor) == pytest.approx(speed, rel=0.05), (task, peer)
    assert len(cells) >= 6
    for where_and_when in ("CPython 3", "Linux 6", "2026"):
        assert where_and_when in SPEED
        assert where_and_when in RUN


# --- the site ------------------------------------------------------------------------------------


def public_modules() -> list[ModuleType]:
    """Import the package and its public modules; the command line is no module to import."""
    names = [module.name for module in pkgutil.iter_modules(meeting_async.__path__)]
    return [
        meeting_async,
        *(
            importlib.import_module(f"meeting_async.{name}")
            for name in names
            if not name.startswith("_") and name != "cli"
        ),
    ]


def public_names() -> set[str]:
    """Return the full names of the public modules and of what they offer; an error has one."""
    names = {f"meeting_async.errors.{name}" for name in error_names()}
    also = {f"meeting_async.{name}" for name in error_names()}
    for module in public_modules():
        names.add(module.__name__)
        names |= {f"{module.__name__}.{name}" for name in getattr(module, "__all__", ())}
    return names - also


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning is an error. It needs the dependency group docs."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, str(DOCS), str(folder)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


def inventory(site: Path) -> set[str]:
    """Return the full names of all Python objects of the site."""
    library: Any = importlib.import_module("sphinx.util.inventory").InventoryFile
    with (site / "objects.inv").open("rb") as file:
        objects: Mapping[str, Mapping[str, object]] = library.load(file, "", "{}{}".format)
    return {name for kind in objects if kind.startswith("py:") for name in objects[kind]}


@pytest.mark.nightly
def test_the_reference_is_complete(site: Path) -> None:
    """Every public name has an entry, no private one has, and no private path is shown."""
    names = inventory(site)
    assert public_names() - names == set()
    assert [name for name in names if re.search(r"\._(?!_)", name)] == []
    pages = [*site.glob("reference/*.html")]
    assert len(pages) > 10
    for page in pages:
        shown = re.sub(r"<[/a-z]+>|<span[^>]*>", "", page.read_text("utf-8"))
        assert re.findall(r"meeting_async(?:\.\w+)*\._(?!_)\w+[\w.]*", shown) == [], page.name


FOUND = {
    "409": "delivery", "413": "interface", "presigned": "documents", "duplicate": "delivery",
    "timeout": "delivery", "TypeError": "errors", "RuntimeError": "errors",
}  # fmt: skip
FOUND_FIRST = {
    "Windows": "operations.html#windows-and-macos", "macOS": "operations.html#windows-and-macos",
    "S3": "documents.html#presigned-links-s3", "Kubernetes": "operations.html#kubernetes",
    "preStop": "operations.html#kubernetes", "nginx": "operations.html#proxies-in-front",
    "join token": "room-life.html", "create room": "room-life.html", "end room": "room-life.html",
    "preload": "room-life.html", "preload_file": "room-life.html",
}  # fmt: skip


@pytest.fixture
def look_for(site: Path, tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that looks for words as a reader does, and returns the links it shows."""

    def links(words: str) -> list[str]:
        query = f"{(site / 'search.html').as_uri()}?q={quote(words)}"
        shown = dom_of(query, tmp_path / words.replace(" ", "-"))
        return [link.partition("?")[0] + anchor for link, anchor in LINK.findall(shown)]

    return links


LINK = re.compile(r'<li[^>]*><a href="([^"#]+)(#[^"]*)?')


@pytest.mark.nightly
@needs_browser
def test_the_search_finds(look_for: Callable[[str], list[str]]) -> None:
    """The site's search lists the page that explains what a reader looks for."""
    for word, page in FOUND.items():
        assert f"{page}.html" in [link.partition("#")[0] for link in look_for(word)], word
    for words, section in FOUND_FIRST.items():
        assert look_for(words)[0] == section, words


@pytest.mark.nightly
@needs_browser
def test_a_name_is_not_taken_for_a_word(look_for: Callable[[str], list[str]]) -> None:
    """Who looks for Windows does not get pages about a window of time."""
    assert "settings.html" in [link.partition("#")[0] for link in look_for("window")]
    assert "settings.html" not in [link.partition("#")[0] for link in look_for("Windows")]
