"""Which tests do not run on Windows, and why: one table."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import functools
import os
import re
import selectors
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

import pytest

IS_WINDOWS = sys.platform == "win32" or hasattr(sys, "is_like_windows")
"""Whether this is Windows, Wine, or Linux without what Windows does not have."""

OWNER_ONLY = 0o666 if os.name == "nt" else 0o600
"""The mode of a private file. On Windows its folder says who may read it."""

WINDOWS: dict[str, list[str]] = {
    "an open file is not deleted or replaced there": [
        r"test_a_file_that_changes_stops_the_batch.*(deleted|moved away|replaced)",
        r"test_changing_files.*\[sent, path, (delete|to fifo|to directory|to device|replace)",
        r"test_changing_files.*\[sent, path, (swap parent|parent to file)",
        r"test_only_the_content_counts.*\[copied-sent",
        "test_an_open_file_may_be_renamed_deleted_and_closed",
    ],
    "there is no time of the last change that nobody can set": [
        r"test_changing_files.*\[(sent|locked), path, rewrite, restore time",
    ],
    "there is no FIFO, no device and no socket in a folder, and no permission to take away": [
        r"test_what_is_not_a_document.*\[(fifo|loop of links|socket|device|forbidden|made up)",
        r"test_changing_files.*\[\w+, path, to (fifo|device)",
        "test_a_fifo_in_the_files_place_blocks_no_thread",
        r"test_what_is_no_journal.*\[(a pipe|in a pipe)",
        "test_crashes.*test_only_its_owner_may_read_it",
        "test_what_may_not_be_read",
        "test_odd_entries_of_folders",
        "test_a_file_that_may_only_be_read_is_refused",
        "test_an_open_file_without_an_end_is_refused",
    ],
    "it tests os.pread and os.preadv": ["test_whatever_a_file_system_can_do_all_is_read"],
    "there are no limits for a process": [
        "test_no_descriptor_left_is_this_machines_trouble",
        "test_a_journal_whose_files_cannot_grow",
        r"test_a_disk_for_spools_that_fails.*\[none",
        "test_a_(full_disk|kill)_leaves_the_old_report",
    ],
    "there is no such name": [
        "test_names_that_mean_something_else_to_sqlite",
        r"test_what_is_no_journal.*\[no UTF-8",
    ],
    "there is no bash": [
        "test_completion",
        "test_what_it_prints_works_when_pasted",
        "test_what_cannot_be_replaced_is_written",
        "test_pipes_of_a_shell",
    ],
    "there is no terminal of Linux": ["test_a_terminal_that_cannot_redraw", "test_on_a_terminal"],
    "there is no lease of a file": ["test_a_disk_that_does_not_answer"],
    "CPU time is counted in steps of 15.6 ms": ["test_a_step_takes_constant_time"],
    "a port does not come free at once": ["test_no_document_to_a_server_that_was_not_asked"],
    "it forks": [
        r"test_a_process_may_exit_or_fork\[(fork|exit with a spool)",
        r"test_every_process_has_a_loop_of_its_own\[fork",
        "test_a_fork_amid_an_upload",
    ],
    "os.kill ends a process there": [
        r"test_what_interrupts_a_call_says_what_is_known\[(Ctrl-C|a handler|SIGTERM)",
        "test_an_interrupted_batch_counts",
    ],
}
"""Tests of what Windows does not have: by a reason, patterns of their ids."""

WINE: dict[str, list[str]] = {
    "Wine makes no symbolic link, and no name that is not Unicode": [
        "test_a_file_whose_name_is_not_text_can_be_sent_under_another",
        r"test_a_job_that_cannot_be_done.*\[(path no UTF-8|good path)",
        "test_another_path_to_the_same_file_is_refused",
        "test_only_a_report_is_replaced",
        "test_a_place_that_is_not_utf8_harms_nobody",
    ],
    "trio does not start in Wine (WinError 10045)": [
        r"[\[-]trio[\]-]",
        "test_base_exceptions_pass_through",
        "test_plugin.*test_servers_and_clients",
        r"test_killed_and_started_again\[at_least_once",
    ],
    "a reset is an end in Wine, where one has waited for it": [
        r"test_what_is_cut.*-None\d?\]",
    ],
    "there is no openssl command in Wine": [
        "test_the_host_of_a_link_gets_nothing_of_the_meeting_servers",
        "test_a_certificate_of_a_link_that_is_not_trusted",
    ],
    "pydantic does not load in Wine": ["FastAPI"],
}
"""Tests of what Wine does not have."""


@functools.cache
def is_wine() -> bool:
    """Return whether this is Wine, and not Windows itself."""
    load: Any = getattr(ctypes, "WinDLL", None)
    return load is not None and hasattr(load("ntdll"), "wine_get_version")


LOOK_SECONDS = 0.5


def let_event_loops_look() -> None:
    """Let event loops look twice a second at what there is to do, if this is Wine.

    Some one of 30,000 bytes that wake up a loop, of either kind, gets lost there.
    """
    if sys.platform == "win32" and is_wine():
        for kind in (asyncio.IocpProactor, selectors.SelectSelector):
            _let_look(kind)


def _let_look(kind: Any) -> None:
    select = kind.select

    def call(self: Any, timeout: float | None = None) -> Any:
        if type(self) is kind:  # a clock that jumps has another one
            timeout = LOOK_SECONDS if timeout is None else min(timeout, LOOK_SECONDS)
        return select(self, timeout)

    kind.select = call


def let_ports_come_free() -> None:
    """Let a server wait up to 5 s for its port, if this is Wine.

    There a port stays in use until no thread waits for its socket, some moments after it is closed.
    """
    if sys.platform == "win32" and is_wine():
        create = socket.create_server

        def call(address: Any, **how: Any) -> socket.socket:
            end = time.monotonic() + 5 * bool(address[1])
            while True:
                try:
                    return create(address, **how)
                except OSError as error:
                    if error.errno != errno.WSAEADDRINUSE or time.monotonic() > end:
                        raise
                time.sleep(0.05)

        setattr(socket, "create_server", call)  # noqa: B010 - another type


def _said_of_nothing() -> str:
    try:
        os.stat("nowhere")
    except OSError as error:
        return str(error.strerror)
    raise AssertionError


NO_SUCH_FILE = _said_of_nothing()
"""What the system says where there is no file."""


def skip_what_cannot_run(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that do not run here, if this is Windows."""
    table = WINDOWS | (WINE if is_wine() else {})
    patterns = {reason: re.compile("|".join(rows)) for reason, rows in table.items()}
    for item in items:
        reason = next((reason for reason, it in patterns.items() if it.search(item.nodeid)), None)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def check_table(items: Iterable[pytest.Item]) -> None:
    """Raise if no test of the whole suite is the one of a row."""
    names = [item.nodeid for item in items]
    rows = [row for table in (WINDOWS, WINE) for rows in table.values() for row in rows]
    if rotten := [row for row in rows if not any(re.search(row, name) for name in names)]:
        raise pytest.UsageError(f"support/systems.py: no test is called {', '.join(rotten)}")
