"""Command lines as a receipt names them, ready for the shell."""

from __future__ import annotations

import shlex

__all__ = ["make_line", "short_id", "short_question"]

_SHORT_ID = 8
"""Characters of a ``record_id`` in lists and receipts."""


def make_line(verb: str, *words: str) -> str:
    """A line of ``mcp-tasks``."""
    return shlex.join(["mcp-tasks", verb, *words])


def short_id(record_id: str) -> str:
    """Enough of an ID to name a call."""
    return record_id[:_SHORT_ID]


def short_question(question_id: str) -> str:
    """Enough of the ID of a question to name it: the beginning of its call's, a dash, and the next digits."""
    record_id, _, rest = question_id.rpartition("-")
    return f"{short_id(record_id)}-{rest[:4]}"
