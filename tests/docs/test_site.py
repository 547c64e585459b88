"""The documentation site: it builds, it has every public name, and its tables equal the code."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

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

DOCS = Path(__file__).parent.parent.parent / "docs"

# --- tables --------------------------------------------------------------------------------------


def rows(page: str, heading: str = "") -> list[list[str]]:
    """Return the cells of the tables below a heading, or of all tables of a page."""
    text = (DOCS / page).read_text("utf-8")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| `")]
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


@pytest.mark.parametrize(
    "code",
    [
        Timeouts,
        RetryPolicy,
        LockPolicy,
        MeetingClient.upload_many,
        HttpTransport,
        RedisRoomLocks,
        WhiteboardUploads,
    ],
    ids=lambda code: code.__name__,
)
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


def test_every_error_has_advice() -> None:
    """The tables name errors that exist, and all of them, except two base classes."""
    first_cells = " ".join(row[0] for row in rows("errors.md"))
    named = set(re.findall(r"`([A-Z]\w+)`", first_cells))
    assert named <= error_names()
    # The page says in a sentence that ServerFailed is for other calls than uploads.
    assert error_names() - named == {"MeetingError", "ReplyError", "ServerFailed"}


def test_the_error_tree_is_that_of_the_module() -> None:
    """The page shows the tree of the docstring."""
    page = (DOCS / "errors.md").read_text("utf-8")
    tree = page.partition("```text\n")[2].partition("```")[0]
    assert textwrap.indent(tree, "    ") in str(errors.__doc__)


def test_formats_of_this_version() -> None:
    """The page of versions has the formats that this version reads."""
    page = (DOCS / "versions.md").read_text("utf-8")
    table = re.search(r"meeting-async, (version \d+)", SCHEMA)
    assert table
    assert f"| {meeting_async.__version__} | format {JOURNAL} | {table[1]} |" in page


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
        path = DOCS.parent / "CHANGELOG.md" if page == "changelog.md" else DOCS / page
        assert path.read_text("utf-8").startswith(f"# {words}"), page


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.stem)
def test_pictures_are_legible_on_a_phone(path: Path) -> None:
    """The smallest text has at least 7.5 pixels where the picture has 358."""
    picture = path.read_text("utf-8")
    (width,) = re.findall(r'^<svg[^>]* viewBox="0 0 ([\d.]+) ', picture)
    sizes = re.findall(r"(?:font:|font-size: ?)([\d.]+)px", picture)
    assert min(map(float, sizes)) * 358 / float(width) >= 7.5


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


BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")


@pytest.mark.nightly
@pytest.mark.skipif(BROWSER is None, reason="there is no browser (chromium-headless-shell)")
@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("409", "waiting"),
        ("413", "interface"),
        ("S3", "interface"),
        ("presigned", "documents"),
        ("duplicate", "delivery"),
        ("timeout", "delivery"),
    ],
)
def test_the_search_finds(word: str, page: str, site: Path, tmp_path: Path) -> None:
    """The site's search lists the page that explains what a reader looks for."""
    done = subprocess.run(
        [
            str(BROWSER), "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
            f"{(site / 'search.html').as_uri()}?q={word}",
        ],
        capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    assert f"{page}.html" in re.findall(r'<li[^>]*><a href="([^"#]+)', done.stdout), done.stderr
