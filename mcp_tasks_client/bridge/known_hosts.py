"""The time after which a call is answered although it goes on, for each known host.

A row needs a reason that was seen, or is in the host's documentation or source. A name that hosts with
different limits share has no row: every program on the Python SDK calls itself ``mcp``.
"""

from __future__ import annotations

from typing import Final

__all__ = ["default_answer_within"]

_UNKNOWN_S: Final = 45.0
"""Seconds for any other host. The SDK for TypeScript, on which most hosts are built, gives a call 60."""

_KNOWN_S: Final = {
    "claude-code": 0.0,  # 30 minutes without progress by default: its documentation
    "gemini-cli-mcp-client": 540.0,  # 600 s by default, and progress moves nothing: its source
    "opencode": 0.0,  # 60 s by default, begun anew by each progress notification: run with 1.18.33
}
"""Seconds by the name that a host gives itself, each with its reason; 0 is never."""


def default_answer_within(host: str) -> float:
    """Seconds after which a call of this host is answered in between; 0 is never."""
    return _KNOWN_S.get(host, _UNKNOWN_S)
