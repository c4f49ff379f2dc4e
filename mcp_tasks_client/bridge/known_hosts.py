"""The time after which a call is answered although it goes on, for each known host."""

from __future__ import annotations

from typing import Final

__all__ = ["default_answer_within"]

_UNKNOWN_S: Final = 45.0
"""Seconds for any other host. The SDKs of most hosts give a call 60 seconds."""

_KNOWN_S: Final = {
    "opencode": 0.0,  # progress moves its limit
    "mcp-tasks": 0.0,
}
"""Seconds by the name that a host gives itself; 0 is never. Each row has its reason."""


def default_answer_within(host: str) -> float:
    """Seconds after which a call of this host is answered in between; 0 is never."""
    return _KNOWN_S.get(host, _UNKNOWN_S)
