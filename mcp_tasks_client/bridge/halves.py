"""Halves of characters (surrogates): JSON can hold them, and many hosts read no message that does."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from mcp_tasks_client.foreign_text import replace_halves

__all__ = ["without_halves"]


def without_halves(value: Any) -> Any:
    """A JSON value with U+FFFD in place of each half of a character."""
    try:
        to_json(value)
    except PydanticSerializationError:
        return json.loads(replace_halves(json.dumps(value, ensure_ascii=False)))
    return value
