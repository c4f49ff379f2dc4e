"""CPU, wall clock and peak memory of this process, between two moments."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Spent", "metered"]

PROC: Final = Path("/proc/self")
RESET_PEAK: Final = "5"  # proc(5): the peak starts again from the present size


@dataclass(slots=True)
class Spent:
    """What the block took; all 0 until it has ended."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_kb: float | None = None
    """Resident memory beyond what there was at the start, at most; ``None`` where only Linux could tell."""


@contextmanager
def metered() -> Iterator[Spent]:
    """Measure a block. Garbage of the time before is collected first, and what remains is left alone."""
    gc.collect()
    gc.freeze()
    spent = Spent()
    resident_kb = _reset_peak()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    yield spent
    spent.cpu_s, spent.wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    if resident_kb is not None:
        spent.peak_kb = _status_kb("VmHWM") - resident_kb


def _reset_peak() -> float | None:
    try:
        (PROC / "clear_refs").write_text(RESET_PEAK)
        return _status_kb("VmRSS")
    except OSError:
        return None


def _status_kb(name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB$", (PROC / "status").read_text(), re.MULTILINE)
    assert found is not None
    return float(found[1])
