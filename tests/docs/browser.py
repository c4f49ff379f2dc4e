"""A headless Chromium, driven by the WebDriver protocol of its chromedriver."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from ..real_server import first_line

__all__ = ["MISSING", "Browser", "browser", "wait_for"]

CHROMIUM: Final = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER: Final = shutil.which("chromedriver")

MISSING: Final = "" if CHROMIUM and DRIVER else "needs chromium and chromedriver"
"""Why there is no browser; empty if there is one."""

LIMIT_S: Final = 60.0

_FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-proxy-server", "--disable-dev-shm-usage"),
)

T = TypeVar("T")


def wait_for(what: Callable[[], T | None]) -> T:
    """What a function gives as soon as it gives something."""
    ends_at = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_at:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError("it did not come about")


class Browser:
    """One window."""

    def __init__(self, http: httpx.Client, session: str) -> None:
        self._http, self._session = http, session

    def open(self, url: str) -> None:
        """Go to a page."""
        self._send("url", {"url": url})

    def run(self, script: str) -> Any:
        """What a script in the page returns."""
        return self._send("execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        """Click on an element as a user does."""
        found = self._send("element", {"using": "css selector", "value": selector})
        (element,) = found.values()
        self._send(f"element/{element}/click", {})

    def _send(self, path: str, body: dict[str, Any]) -> Any:
        reply = self._http.post(f"/session/{self._session}/{path}", json=body)
        assert reply.is_success, reply.text
        return reply.json()["value"]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile, and a chromedriver for it."""
    assert DRIVER is not None
    command = [DRIVER, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            line = b""
            while b" on port " not in line or b"successfully" not in line:
                line = first_line(process.stdout, LIMIT_S)
                assert line, "chromedriver did not start"
            port = int(line.split(b" on port ")[1].rstrip(b".\n"))
            base = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=base, timeout=LIMIT_S, trust_env=False) as http:
                options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
                wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
                reply = http.post("/session", json=wanted)
                assert reply.is_success, reply.text
                session = reply.json()["value"]["sessionId"]
                try:
                    yield Browser(http, session)
                finally:
                    http.delete(f"/session/{session}")
        finally:
            process.terminate()
