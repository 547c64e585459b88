"""A page of HTML as a tree, read strictly: each element is ended, and in its turn."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree.ElementTree import Element, TreeBuilder, fromstring

VOID = {"col", "input", "link", "meta"}
"""Elements without an end tag, of those that a report has."""

SVG = "{http://www.w3.org/2000/svg}"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.builder = TreeBuilder()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute of {tag} comes twice: {names}"
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        self._open.append(tag)
        if tag in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        if self._open:
            self.builder.data(data)

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"what is {data!r} doing here?")

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")


def parse(html: str) -> Element:
    """Return the root of a page."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.builder.close()


def text_of(element: Element) -> str:
    """Return all text within an element."""
    return "".join(element.itertext())


def by_id(root: Element, name: str) -> Element | None:
    """Return the element with this id."""
    return next((element for element in root.iter() if element.get("id") == name), None)


def by_class(root: Element, name: str) -> Iterator[Element]:
    """Yield the elements of this class."""
    return (element for element in root.iter() if name in element.get("class", "").split())


def skeleton(element: Element) -> tuple[object, ...]:
    """Return what a page consists of apart from what people read: tags, attributes, links."""
    told = {"title", "aria-label"}
    names = {name: "" if name in told else value for name, value in element.attrib.items()}
    return element.tag, names, [skeleton(child) for child in element]


def drawings(html: str) -> list[Element]:
    """Return all SVG of a page, each read as the XML that it must be."""
    return [fromstring(found) for found in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
