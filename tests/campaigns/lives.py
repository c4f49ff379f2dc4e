"""The processes of a campaign, each of them a *life*: begun, killed, and what they say and write down.

A process prints ``ready`` once, and then a word for each line of its log (``torture.evidence``). A thread
reads that, so that no process is held up by a pipe that is full, and whoever waits for a word is woken by it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from tests._forked import Program

from .torture.evidence import Line, read_log

__all__ = ["LIMIT_S", "Lives", "takeovers"]

LIMIT_S: Final = 240.0


class Lives:
    """The processes of a campaign, by a number for each.

    Args:
        folder: For their logs, and for what they print as errors.

    Attributes:
        running: Those that have not been killed or ended.
        killed_at: When a life was killed, in seconds of ``time.monotonic()``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[int, Program] = {}
        self.killed_at: dict[int, float] = {}
        self._lives = 0
        self._said: Counter[tuple[int, str]] = Counter()
        self._news = threading.Condition()

    def next_life(self) -> tuple[int, Path]:
        """The number of the process that is begun next, and its log."""
        return self._lives + 1, self._log(self._lives + 1)

    def begin(self, command: Iterable[object]) -> int:
        """Begin the process that ``next_life`` has announced. Returns its number."""
        self._lives += 1
        life = self._lives
        with self._errors(life).open("wb") as errors:
            process = Program(*command, stderr=errors)
        self.running[life] = process
        threading.Thread(target=self._listen, args=(life, process.stdout), daemon=True).start()
        return life

    def wait_for(self, life: int) -> None:
        """Return once a process is ready.

        Raises:
            RuntimeError: It has ended before, or the time was over.
        """
        with self._news:
            self._news.wait_for(lambda: self._said[life, "ready"] or self._said[life, ""], LIMIT_S)
        if not self._said[life, "ready"]:
            raise RuntimeError(self._errors(life).read_text(errors="replace")[-2000:])

    def count(self, life: int, word: str) -> int:
        """How often a process has said a word until now."""
        with self._news:
            return self._said[life, word]

    def wait_for_word(self, life: int, word: str, times: int, limit_s: float) -> bool:
        """Wait until a process has said a word so often, or has ended. Returns whether it has said it."""
        with self._news:
            self._news.wait_for(lambda: self._said[life, word] >= times or self._said[life, ""], limit_s)
            return self._said[life, word] >= times

    def wait_for_deliveries(
        self, calls: int, ours: Iterable[str | None] = (), limit_s: float = LIMIT_S
    ) -> bool:
        """Wait until so many calls are delivered, besides ours. Returns whether they were in time."""
        deadline = time.monotonic() + limit_s
        while True:
            with self._news:
                said = self._deliveries()
            delivered = {line.intent for _, line in self.lines() if line.what == "delivered"} | {*ours}
            missing = calls - len(delivered)
            if missing <= 0 or time.monotonic() >= deadline:
                return missing <= 0
            self._wait_for_more(said + missing, deadline)  # since some are said once more

    def _wait_for_more(self, deliveries: int, deadline: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._deliveries() >= deliveries, deadline - time.monotonic())

    def kill(self, life: int) -> None:
        """End a process by SIGKILL, and wait until it has ended."""
        self.killed_at[life] = time.monotonic()
        self.running[life].kill()
        self.wait_for_end(life)

    def wait_for_end(self, life: int) -> None:
        """Wait until a process has ended that was told to."""
        process = self.running.pop(life)
        process.wait(LIMIT_S)
        with self._news:
            self._news.wait_for(lambda: self._said[life, ""], LIMIT_S)
        process.stdin.close()

    def end(self) -> None:
        """Kill all that run."""
        for life in list(self.running):
            self.kill(life)

    def lines(self) -> list[tuple[int, Line]]:
        """What all have written down, and who, in the order of time."""
        found = [(life, line) for life in range(1, self._lives + 1) for line in read_log(self._log(life))]
        return sorted(found, key=lambda pair: pair[1].at)

    def _deliveries(self) -> int:
        return sum(times for (_, word), times in self._said.items() if word == "delivered")

    def _listen(self, life: int, out: IO[bytes]) -> None:
        with out:
            for line in out:
                self._note(life, line.decode().strip())
        self._note(life, "")

    def _note(self, life: int, word: str) -> None:
        with self._news:
            self._said[life, word] += 1
            self._news.notify_all()

    def _log(self, life: int) -> Path:
        return self.folder / f"life-{life}.jsonl"

    def _errors(self, life: int) -> Path:
        return self.folder / f"life-{life}.txt"


def takeovers(killed_at: dict[int, float], lines: list[tuple[int, Line]]) -> Iterator[tuple[float, float]]:
    """When a process was killed, and when another one adopted what it had: a pair for each call."""
    delivered = {(life, line.task_id) for life, line in lines if line.what == "delivered"}
    adopted = [(life, line) for life, line in lines if line.what == "resumed"]
    for life, had in adopted:
        at = killed_at.get(life)
        if at is None or (life, had.task_id) in delivered:
            continue  # what was delivered may have been acknowledged as well
        after = [line.at for _, line in adopted if line.task_id == had.task_id and line.at > at]
        if after:
            yield at, min(after)
