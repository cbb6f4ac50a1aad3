"""Chromium without a window, driven over its debugging pipe: what a reader's browser makes of a
page. The protocol: https://chromedevtools.github.io/devtools-protocol/, JSON ended by NUL bytes
on descriptors 3 (to the browser) and 4."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.base import process

CHROMIUM = "chromium"
_ANSWER_S = 300.0
"""Limit for a browser that hangs: a busy machine takes a minute to print a page of 2 MB."""

_TROUBLE = (
    "Runtime.exceptionThrown",
    "Runtime.consoleAPICalled",
    "Log.entryAdded",
    "Network.requestWillBeSent",
    "Security.certificateError",
)


@dataclass
class Browser:
    """One tab. `trouble`: what the page said to the console and asked of the network."""

    write: int
    read: int
    session: str = ""
    trouble: list[str] = field(default_factory=list)
    page: str = ""
    _number: int = 0
    _rest: bytes = b""
    _loaded: bool = False

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, what: str) -> dict[str, Any]:
        ends = time.monotonic() + _ANSWER_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self.read], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"Chromium did not answer {what} in {_ANSWER_S:g} s"
            data = os.read(self.read, 1 << 20)
            assert data, f"Chromium ended during {what}"
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        method = message.get("method")
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method in _TROUBLE:
            asked = message["params"].get("request", {}).get("url", "")
            if asked != self.page:
                self.trouble.append(f"{method}: {asked or json.dumps(message['params'])[:400]}")
        return message

    def show(self, *, dark: bool = False, media: str = "screen") -> None:
        """Show the page, as loaded, in the dark or in the light, on a screen or as if printed."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, file: Path, *, width: int, dark: bool = False, media: str = "screen") -> None:
        """Load a page afresh; what it says and asks is in `trouble` afterwards."""
        self.trouble.clear()
        self.page = file.resolve().as_uri()
        self.show(dark=dark, media=media)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self._loaded = False
        self.call("Page.navigate", url=self.page)
        while not self._loaded:
            self._next("the page's load event")

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def printed(self) -> bytes:
        """Return the page as a PDF, on paper as the page wants it."""
        answer = self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(answer["data"])


def _high_pipe() -> tuple[int, int]:
    """Return a pipe whose descriptors are none of those that the protocol wants."""
    low = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return read, write


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """Chromium with one empty tab and nothing of the user's. `folder` becomes its profile.

    Raises HostError when it isn't installed: 'make setup' does that.
    """
    to_child, write = _high_pipe()
    read, from_child = _high_pipe()
    argv = [
        "bash",
        "-c",
        # The protocol asks for these numbers; dash can't take ours, which have two digits.
        f'exec "$@" 3<&{to_child} 4>&{from_child}',
        "bash",
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",  # root has none, and the pages are our own
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    try:
        with process.running(argv, pass_fds=(to_child, from_child), env={"HOME": str(folder)}):
            os.close(to_child)
            os.close(from_child)
            browser = Browser(write, read)
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            answer = browser.call("Target.attachToTarget", targetId=target, flatten=True)
            browser.session = answer["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                browser.call(f"{domain}.enable")
            yield browser
    finally:
        os.close(write)
        os.close(read)
