"""A pytest inside a test, with the plugin of this package."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio.testing  # noqa: F401 - see below

# A pytest inside forgets the modules that it imports first: they would be made once per test.
import meeting_async.testing
import meeting_async.transports  # noqa: F401

Inner = Callable[..., pytest.RunResult]

PLUGINS = ("-p", "anyio", "-p", "meeting_async", "-p", "no:cacheprovider")
"""By the names of their entry points; what else is installed here may not matter."""

UPLOAD = """
async def upload(client, name="deck.pdf", **how):
    return await client.upload_whiteboard_file("room01", b"%PDF-1.7", filename=name, **how)
"""


@pytest.fixture(name="inner")
def inner_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Inner:
    """Run the tests in a text; warnings are errors, and garbage tells of what was not closed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(
        "import gc, pytest\n\n"
        "@pytest.fixture(autouse=True)\ndef collect():\n    yield\n    gc.collect()\n"
    )

    def run(code: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(test_inner="import anyio, pytest\n" + UPLOAD + code)
        # It cannot rewrite the assertions of what is imported already, and would warn of it.
        return pytester.runpytest_inprocess("-W", "error", "--assert=plain", *PLUGINS, *args)

    return run


IN_VIRTUAL_TIME = """
import sniffio

@pytest.mark.meeting_server(processing_seconds=60)
def test_it(meeting_server, meeting_client, in_virtual_time{fixture}):
    async def main(name):
        assert sniffio.current_async_library() == {backend}
        meeting_server.rooms["room01"].lock(300)
        return await upload(meeting_client, name)

    receipt = in_virtual_time(main, "late.pdf")
    assert 360 <= receipt.seconds < 370
    assert [file.name for file in meeting_server.rooms["room01"].received] == ["late.pdf"]
"""
