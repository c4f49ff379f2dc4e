"""The options of a bridge: one value, made once and handed on as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from .known_hosts import default_answer_within

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of :func:`bridge` that are the same for every way in which hosts reach it.

    Raises:
        ValueError: An option makes no sense.
    """

    application: str | None = None
    answer_within_s: float | None = None
    questions: Literal["host", "inbox"] = "host"
    new_for: Sequence[str] = ()
    memory: Path | None = None
    line_for: Callable[[str], str] = "mcp-tasks answer {}".format
    """The line by which a person answers a question in a terminal, by the question's ID."""

    def __post_init__(self) -> None:
        if self.questions not in ("host", "inbox"):
            raise ValueError(f'questions must be "host" or "inbox", got {self.questions!r}')
        if self.answer_within_s is not None and not self.answer_within_s >= 0:
            raise ValueError(f"answer_within_s must be 0 seconds or more, got {self.answer_within_s}")

    @property
    def asks_host(self) -> bool:
        """True if the server's questions are put to the host."""
        return self.questions == "host"

    def answer_within(self, host: str) -> float:
        """Seconds after which a call of the host of this name is answered although it goes on; 0 is never."""
        return default_answer_within(host) if self.answer_within_s is None else self.answer_within_s

    def is_new(self, tool: str) -> bool:
        """True if each call of the tool is a new one."""
        return any(fnmatchcase(tool, pattern) for pattern in self.new_for)
