"""A real browser without a window, spoken to over two pipes (the Chrome DevTools Protocol).

https://chromedevtools.github.io/devtools-protocol/: messages are JSON objects that end with a NUL;
the browser reads descriptor 3 and writes descriptor 4 (``--remote-debugging-pipe``). No driver, no
port, no WebSocket.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
import pytest

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

PROGRAM = next(filter(None, map(shutil.which, _NAMES)), None)

needs_browser = pytest.mark.skipif(
    PROGRAM is None, reason="there is no browser (apt install chromium-headless-shell)"
)

ANSWER_SECONDS = 20.0
STOP_SECONDS = 5.0

_READS, _WRITES = 3, 4

_ARGUMENTS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # it sees nothing but the pages of a test, and root may not have one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--font-render-hinting=none",
)

_TROUBLE = {"Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"}

Message = dict[str, Any]


class Browser:
    """Runs while its block does; all it writes is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rest = b""
        self._calls = 0
        self.events: list[Message] = []
        """What it told unasked, oldest first."""

    def __enter__(self) -> Self:
        assert PROGRAM is not None
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        log = str(self._folder / "browser.log")
        self._process = os.posix_spawn(
            PROGRAM,
            [PROGRAM, *_ARGUMENTS, f"--user-data-dir={self._folder / 'profile'}", "about:blank"],
            {**os.environ, "HOME": str(self._folder)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 2, 1),
                # What is to be 4 may be 3 now, and must not be overwritten before it is copied.
                (os.POSIX_SPAWN_DUP2, to_write, 9),
                (os.POSIX_SPAWN_DUP2, to_read, _READS),
                (os.POSIX_SPAWN_DUP2, 9, _WRITES),
                (os.POSIX_SPAWN_CLOSE, 9),
            ],
            setpgroup=0,
        )
        os.close(to_read)
        os.close(to_write)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self.call("Browser.close")
        os.close(self._to)
        os.close(self._from)
        until = time.monotonic() + STOP_SECONDS
        while os.waitpid(self._process, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.killpg(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
                return
            time.sleep(0.01)

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._calls += 1
        message: Message = {"id": self._calls, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._receive(until)
            if answer.get("id") == self._calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        """Wait until the browser has told so since the events were last cleared."""
        until = time.monotonic() + ANSWER_SECONDS
        while not any(event["method"] == method for event in self.events):
            self.events.append(self._receive(until))

    def _receive(self, until: float) -> Message:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._from, 1 << 20) if ready else b""
            assert data, f"no answer of the browser; see {self._folder / 'browser.log'}"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        found: Message = json.loads(message)
        return found

    def open(self, path: Path, *, width: int, dark: bool = False) -> Tab:
        """Open a page in a viewport so many CSS pixels wide."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, width)
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            tab.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.resize(900)
        self.events.clear()
        tab.call("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")
        return tab


@attrs.define
class Tab:
    """A page in the browser."""

    _browser: Browser
    _session: str
    _width: int

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol for this page."""
        return self._browser.call(method, self._session, **params)

    def resize(self, height: int) -> None:
        """Make the viewport so many CSS pixels high."""
        size = {"width": self._width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=self._width < 600, **size)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, height: int | None = None) -> bytes:
        """Write a picture of the viewport as PNG; with ``height``, of so much of the page."""
        if height is not None:
            self.resize(height)
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def complaints(self) -> list[Message]:
        """Return what the console, the security policy or a dialogue had to say since opened."""
        self.evaluate("0")  # whatever was told before this was answered has been received
        return [
            event["params"]
            for event in self._browser.events
            if event["method"] in _TROUBLE or event["method"] == "Runtime.consoleAPICalled"
        ]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since it was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def metric(self, name: str) -> float:
        """Return a figure of the browser's own accounts, such as ``LayoutDuration`` (seconds)."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == name))
