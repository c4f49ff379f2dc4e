"""How much a session sends at once, reads of one reply, and waits for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one session.

    Raises:
        ValueError: One is not positive.
    """

    max_response_bytes: int
    """Bytes of one reply, decompressed, or of one event while listening, at most."""

    tasks_in_flight: int
    """Polls under way at once, at most, and as many other ``tasks/*`` requests."""

    calls_in_flight: int
    """``tools/call`` requests under way at once, at most."""

    task_timeout_s: float
    """Seconds of silence after which a request is given up; twice as many in all."""

    call_read_timeout_s: float
    """Seconds of silence after which a ``tools/call`` is given up."""

    @classmethod
    def of_host(cls, tasks_in_flight: int = 16, calls_in_flight: int = 64) -> Self:
        """Those over a session of the host's, which has limits of its own for what it reads."""
        return cls(
            max_response_bytes=64 * 1024 * 1024,
            tasks_in_flight=tasks_in_flight,
            calls_in_flight=calls_in_flight,
            task_timeout_s=30.0,
            call_read_timeout_s=300.0,
        )

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be more than 0, got {value}")
