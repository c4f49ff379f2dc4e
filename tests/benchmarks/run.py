"""All measurements, interleaved: each run is a fresh client process against a fresh server process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin
from urllib.request import ProxyHandler, build_opener

from .figures import Found, Measurement, Runs

__all__ = ["BenchmarkError", "measured"]

ROOT: Final = Path(__file__).parents[2]
SERVER: Final = Path(__file__).with_name("server.py")
LIMIT_S: Final = 900.0
"""Seconds that one run may take."""

Tell = Callable[[str], None]


class BenchmarkError(Exception):
    """A client did not get to the end of its measurement."""


def measured(
    measurements: Iterable[Measurement],
    *,
    quick: bool,
    tell: Tell,
    count: int | None = None,
) -> dict[str, Runs]:
    """Make measurements, one after the other.

    Args:
        measurements: Which.
        quick: Smaller counts, and no repetitions.
        tell: Told of each run.
        count: In place of each measurement's own.

    Returns:
        What each client's runs found, by the measurement's name and the client's.

    Raises:
        BenchmarkError: One could not be made.
    """
    return {
        one.name: _interleaved(
            one,
            count or (one.quick if quick else one.count),
            1 if quick else one.repetitions,
            tell,
        )
        for one in measurements
    }


def _interleaved(measurement: Measurement, count: int, repetitions: int, tell: Tell) -> Runs:
    runs: dict[str, list[Found]] = {who: [] for who in measurement.who}
    for repetition in range(repetitions):
        # Every other time the other way round, so that what grows slower with time favours nobody.
        for who in measurement.who[:: -1 if repetition % 2 else 1]:
            found = _one(who, measurement, count)
            tell(f"{measurement.name} {repetition + 1}/{repetitions} {who}: {json.dumps(found)}")
            runs[who].append(found)
    return runs


def _one(who: str, measurement: Measurement, count: int) -> dict[str, Any]:
    what = measurement.work
    if what == "imports":
        return _said("imports", who)
    options = ["client", who, what, "--count", str(count)]
    if what == "commits":
        return {"count": count, **_said(*options)}
    with _served() as url:
        found = _said(*options, "--url", urljoin(url, measurement.path))
        witness = _witness(url)
    return {
        "count": count,
        **found,
        "left": witness["unfetched"] + found.get("unfinished", 0),
        "polls": witness.get("tasks/get", 0),
        "most_polls": witness["most_polls"],
        "most_looks": witness["most_looks"],
        "told": witness.get("told", 0),
        "server_cpu_s": witness["cpu_s"],
        "early": witness["early"],
        "headless": witness["missing_name"] + witness["missing_method"],
    }


@contextmanager
def _served() -> Iterator[str]:
    """The URL of the server, which runs in a process of its own until its standard input ends."""
    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line:
            raise BenchmarkError("the server did not start")
        try:
            yield json.loads(line)["url"]
        finally:
            server.stdin.close()


def _said(module: str, *arguments: str) -> dict[str, Any]:
    """The one line of JSON that a module prints."""
    command: Sequence[str] = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    begun_at = time.monotonic()
    try:
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{' '.join(arguments)} took more than {LIMIT_S:.0f} s") from None
    if ended.returncode:
        after_s = time.monotonic() - begun_at
        raise BenchmarkError(f"{' '.join(arguments)} failed after {after_s:.1f} s:\n{ended.stderr[-4000:]}")
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


def _witness(url: str) -> dict[str, Any]:
    # A proxy of the environment's has no business on loopback.
    with build_opener(ProxyHandler({})).open(urljoin(url, "/witness"), timeout=30) as reply:
        seen = json.load(reply)
    assert isinstance(seen, dict)
    return seen
