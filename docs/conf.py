"""The documentation site: ``sphinx-build -W docs site``. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import re
import ssl
import tomllib
from pathlib import Path
from typing import Any

from sphinx import addnodes
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.search.en import SearchEnglish

import meeting_async
from meeting_async import _client
from meeting_async._batch.flow import Jobs
from meeting_async._batch.options import OncePer
from meeting_async._http import transport
from meeting_async.journals import Journal

project = "meeting-async"
pyproject = (Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8")
version = release = tomllib.loads(pyproject)["project"]["version"]
html_title = f"meeting-async {release}"
html_theme = "furo"
html_theme_options = {"light_css_variables": {"code-font-size": "76%"}}  # 100 columns fit
html_show_copyright = False
html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["html_image"]
myst_heading_anchors = 3
default_role = "literal"

autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
# Of extras, which need not be installed.
autodoc_mock_imports = ["opentelemetry", "procrastinate", "redis"]
# Imported for type checkers only, and autodoc needs them to read signatures.
vars(_client).update(Batch=meeting_async.Batch, Jobs=Jobs, Journal=Journal, OncePer=OncePer)
vars(transport).update(Verify=ssl.SSLContext | str | os.PathLike[str] | bool)

PRIVATE = r"meeting_async\.(\w+\.)*_.*"
# A reference to a name of ours that is not there fails the build.
nitpicky = True
nitpick_ignore_regex = [
    # There is no inventory of others.
    (
        "py:.*",
        r"(asyncio|collections|contextlib|datetime|metrics|os|procrastinate|psycopg|redis|ssl|trace)\..*",
    ),
    ("py:class", r"(types\.)?EllipsisType"),
    # A name of a type, in a signature, and a private type are shown as text.
    ("py:class", "Documents|ClientOptions|ClientSettings"),
    ("py:class", PRIVATE),
]

PAGES_OF_RESULTS = {"reference/results", "reference/events", "reference/errors"}
MADE_BY_METHODS = {
    "meeting_async.Batch",
    "meeting_async.BatchReport",
    "meeting_async.Document",
    "meeting_async.UploadOutcome",
    "meeting_async.sync.Batch",
    "meeting_async.testing.ReceivedFile",
    "meeting_async.testing.RecordedRequest",
    "meeting_async.testing.Room",
}


def leave_out_constructor(
    app: Any, what: str, name: str, _object: object, _options: object, arguments: str | None, _: str
) -> tuple[str, str] | None:
    """Show no arguments of a class that a caller does not make by calling it."""
    is_result = what in {"class", "exception"} and app.env.docname in PAGES_OF_RESULTS
    return ("", "") if arguments and (is_result or name in MADE_BY_METHODS) else None


def read_docstring(
    _app: Any, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Link pages, and read Google style, except where "Number of bytes: ..." is no type."""
    lines[:] = [re.sub(r"``docs/([\w-]+)\.md``", r":doc:`/\1`", line) for line in lines]
    if what not in {"attribute", "property"}:
        lines[:] = GoogleDocstring(lines, what=what).lines()


def drop_private_names(_app: Any, env: Any) -> None:
    """Classes are defined in private modules: autodoc lists these paths, too."""
    objects = env.get_domain("py").objects
    for name in [name for name in objects if "._" in name and not name.endswith("__")]:
        del objects[name]


def resolve_private_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Link a class that a signature names by its private path."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not re.match(PRIVATE, target):
        return None
    node["refspecific"] = True  # find it in any module, except if the package itself has it
    domain, name = env.get_domain("py"), target.rpartition(".")[2]
    if f"meeting_async.{name}" in domain.objects:
        name = f"meeting_async.{name}"
    return domain.resolve_xref(env, node["refdoc"], app.builder, "class", name, node, content)


NAMES = {"windows"}
"""Names that the search must not shorten: a window is something else."""

SECTIONS = {
    "create room": "room-life",
    "end room": "room-life",
    "join token": "room-life",
    "Kubernetes": "operations#kubernetes",
    "macOS": "operations#windows-and-macos",
    "nginx": "operations#proxies-in-front",
    "preload": "room-life",
    "preStop": "operations#kubernetes",
    "S3": "documents#presigned-links-s3",
    "Windows": "operations#windows-and-macos",
}
"""What readers look for, and the section that the search shows first: as in a book's index."""


class OurSearch(SearchEnglish):
    """Sphinx leaves numbers out of its index, and readers look for 409; names stay as they are."""

    def stem(self, word: str) -> str:
        """Shorten a word to its stem, unless it is a name."""
        return word.lower() if word.lower() in NAMES else super().stem(word)

    def word_filter(self, word: str) -> bool:
        """Keep all words but the most frequent ones."""
        return word not in self.stopwords


def read_words_alike(app: Any, _error: Exception | None) -> None:
    """Let Sphinx's script treat the words that a reader looks for as the index treats its own."""
    script = Path(app.outdir, "_static", "searchtools.js")
    if script.is_file():
        text = script.read_text("utf-8").replace(r"queryTerm.match(/^\d+$/)", "false")
        stemmed = "stemmer.stemWord(queryTermLower)"
        named = f"{json.dumps(sorted(NAMES))}.includes(queryTermLower) ? queryTermLower : {stemmed}"
        script.write_text(text.replace(f"let word = {stemmed}", f"let word = {named}"), "utf-8")


def add_to_the_index(app: Any, doctree: Any) -> None:
    """Add the sections of `SECTIONS` to the index, which the search reads, too."""
    for words, place in SECTIONS.items():
        page, _, anchor = place.partition("#")
        if page == app.env.docname:
            doctree += addnodes.index(entries=[("single", words, anchor, "main", None)])


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.add_search_language(OurSearch)
    app.connect("build-finished", read_words_alike)
    app.connect("autodoc-process-signature", leave_out_constructor)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("doctree-read", add_to_the_index)
    app.connect("env-updated", drop_private_names)
    app.connect("missing-reference", resolve_private_name)
