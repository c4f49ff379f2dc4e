"""Reading the results of tools."""

from __future__ import annotations

from typing import Any

__all__ = ["text"]


def text(result: Any) -> str:
    """The one text of a result."""
    (block,) = result.content
    said: str = block.text
    return said
