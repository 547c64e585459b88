"""Recognise files that programs leave beside documents, by their names alone."""

from __future__ import annotations

import os
import re

_SYSTEM = "a file of the operating system"

_KINDS = {
    # An NTFS stream: copied to another file system it becomes a file of its own, and WSL (U+F03A),
    # Samba (U+F022) and others replace the colon.
    r".+[:_\uf022\uf03a]zone\.identifier": "a file that says where a file was downloaded from",
    r".+\.(crdownload|download|opdownload|part|partial)": "an unfinished download",
    r"~\$.*|\.~lock\..*#": "the lock file of an office program",
    # `._deck.pdf`: metadata of deck.pdf from macOS, on file systems that cannot keep it inside.
    r"\._.*|\.ds_store|thumbs\.db|ehthumbs\.db|desktop\.ini": _SYSTEM,
}
"""What a file with such a name is, whatever its case."""

_FOLDERS = {"@eadir", "__macosx", "$recycle.bin", "system volume information"}
"""Folders without documents, of a NAS, of macOS (in archives) and of Windows."""


def is_junk_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is not a document, but something that a program left beside one.

    These are lock files of office programs (``~$deck.docx``, ``.~lock.deck.odp#``), unfinished
    downloads (``.crdownload``, ``.download``, ``.opdownload``, ``.part``, ``.partial``),
    ``deck.pdf:Zone.Identifier``, ``.DS_Store``, ``._deck.pdf``, ``Thumbs.db``, ``ehthumbs.db``,
    ``desktop.ini``, and everything in a folder ``@eaDir``, ``__MACOSX``, ``$RECYCLE.BIN`` or
    ``System Volume Information``. Only the path counts; the file need not exist.
    """
    return bool(junk_kind(os.fspath(path)))


def junk_kind(path: str) -> str:
    """Return what a junk file is, in a few words; ``""``: it may be a document."""
    *folders, name = re.split(r"[/\\]", path)
    if is_junk_folder(name) or any(map(is_junk_folder, folders)):
        return _SYSTEM
    return next((kind for row, kind in _KINDS.items() if re.fullmatch(f"(?is){row}", name)), "")


def is_junk_folder(name: str) -> bool:
    """Return whether a folder of this name has no documents."""
    return name.casefold() in _FOLDERS
