"""How much a session over HTTP sends at once, reads of one reply, and waits for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be more than 0, got {value}")
