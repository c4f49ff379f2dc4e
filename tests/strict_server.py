"""The strict tasks server over HTTP as a pytest fixture: one process for the whole session.

``conftest.py`` imports the fixture. The tools are those of ``servers/strict_tasks.py``; what is
refused is in ``servers/strict_server.py``, what the log holds in ``servers/strict_log.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from .real_server import fetch, listening
from .servers.strict_log import Entry

__all__ = ["SCRIPT", "StrictProcess", "running_strict_server", "strict_server"]

SCRIPT = Path(__file__).parent / "servers" / "strict_server.py"


@dataclass(frozen=True, slots=True)
class StrictProcess:
    """A running server."""

    url: str
    pid: int

    def log(self, since: int = 0) -> list[Entry]:
        """What has arrived so far, oldest first, but for the first ``since`` entries."""
        return [Entry(**entry) for entry in fetch(self.url, "/witness", {"since": since})]

    def mark(self) -> int:
        """The ``since`` from which :meth:`log` gives only what is yet to come."""
        count = fetch(self.url, "/witness/count")
        assert isinstance(count, int)
        return count


@contextmanager
def running_strict_server(log: Path) -> Iterator[StrictProcess]:
    """A server of its own, for a test that must not share one.

    Args:
        log: File for the server's stderr; its end is shown if the server does not start.
    """
    with listening(SCRIPT, log, "http") as (url, pid):
        yield StrictProcess(url=url, pid=pid)


@pytest.fixture(scope="session")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictProcess]:
    """A strict tasks server on loopback, shared by the whole session."""
    with running_strict_server(tmp_path_factory.mktemp("strict_server") / "stderr.log") as server:
        yield server
