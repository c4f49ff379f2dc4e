"""The tutorial's server, in a process of its own: faster than a reader would like, at a free port."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from .._forked import Program
from ..kit.ports import unused_port
from ..real_server import stop
from .pages import PORT, programs

__all__ = ["docs_server", "running"]

START_LIMIT_S: Final = 60.0

QUICKER: Final = {"STEP_S = 10 ": "STEP_S = 0.3 ", "timedelta(seconds=1)": "timedelta(milliseconds=50)"}

_UNTIL_STDIN_ENDS: Final = """
import os, runpy, sys, threading
sys.stdout = sys.stderr
threading.Thread(target=lambda: os._exit(0) if not sys.stdin.read() else None, daemon=True).start()
runpy.run_path("server.py", run_name="__main__")
"""


@pytest.fixture(scope="session")
def docs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server of every page, from the tutorial; gives what stands in place of :data:`PORT`."""
    with running(tmp_path_factory.mktemp("docs_server")) as at:
        yield at


@contextmanager
def running(folder: Path, replacements: Mapping[str, str] | None = None) -> Iterator[str]:
    """The tutorial's server, with other text in some places; gives what stands in place of :data:`PORT`.

    ``{port}`` in a replacement is the port.
    """
    port = unused_port()
    source = programs()["server.py"]
    for old, new in {**QUICKER, "port=8000": "port={port}", **(replacements or {})}.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new.replace("{port}", str(port)))
    (folder / "server.py").write_text(source, encoding="utf-8")
    log = folder / "server.log"
    with (
        log.open("wb") as stderr,
        Program("-c", _UNTIL_STDIN_ENDS, cwd=folder, stderr=stderr) as process,
    ):
        try:
            _wait_for(port, process, log)
            yield PORT.replace("8000", str(port))
        finally:
            stop(process)


def _wait_for(port: int, process: Program, log: Path) -> None:
    ends_at = time.monotonic() + START_LIMIT_S
    while time.monotonic() < ends_at and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"the tutorial's server did not start:\n{log.read_text(errors='replace')[-4000:]}")
