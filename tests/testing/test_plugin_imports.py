"""What the pytest plugin costs those who do not use it, and what it says when a part is missing."""

from __future__ import annotations

import sys

import pytest

from support.inner import IN_VIRTUAL_TIME, Inner


def test_nothing_is_imported_for_those_who_do_not_ask(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither this package, whose coverage would suffer, nor anything that it needs."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(
        """
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("meeting_async")
            heavy = {"anyio", "meeting_async", "attrs", "h11", "httpx", "trio"}
            assert not heavy & set(sys.modules)

        def test_asyncio(meeting_server, in_virtual_time):
            async def main():
                pass
            in_virtual_time(main)
            assert "trio.testing" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "meeting_async").assert_outcomes(passed=2)


HINT = 'install the extra "testing", for example: pip install "meeting-async[testing]"'


@pytest.mark.parametrize(
    ("missing", "arguments", "line"),
    [
        ("python_multipart", "meeting_server", f"needs python_multipart: {HINT}"),
        ("h11", "meeting_client", f"needs h11: {HINT}"),
        ("h11", "in_virtual_time", f"needs h11: {HINT}"),
        (
            "trio.testing",
            "anyio_backend, in_virtual_time",
            "in_virtual_time on trio needs trio: pip install trio",
        ),
    ],
)
def test_what_is_missing_is_named(
    inner: Inner, monkeypatch: pytest.MonkeyPatch, missing: str, arguments: str, line: str
) -> None:
    """In one clear line, where a test asks for it; all other tests run."""
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "meeting_async.testing")  # to be imported again
    done = inner(
        '@pytest.fixture\ndef anyio_backend():\n    return "trio"\n\n'
        f"def test_one({arguments}): pass\ndef test_two(): pass\n"
    )
    done.assert_outcomes(passed=1, errors=1)
    assert any(found.endswith(line) for found in done.outlines)
    assert "Traceback" not in done.stdout.str()
    assert "_meeting_async_pytest.py" not in done.stdout.str()


def test_asyncio_needs_no_trio(inner: Inner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time on asyncio works without it."""
    monkeypatch.setitem(sys.modules, "trio", None)
    monkeypatch.setitem(sys.modules, "trio.testing", None)
    inner(IN_VIRTUAL_TIME.format(fixture="", backend='"asyncio"')).assert_outcomes(passed=1)


def test_it_can_be_switched_off(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of the entry point."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    pytester.makepyfile("def test_it(meeting_server):\n    pass\n")
    done = pytester.runpytest_inprocess(
        "--assert=plain", *("-p", "no:meeting_async"), *("-p", "no:asyncio")
    )
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*fixture 'meeting_server' not found"])
