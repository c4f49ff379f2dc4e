"""Halves of characters (surrogates): JSON can hold them, and many hosts read no message that does."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

__all__ = ["without_halves"]

_HALF: Final = re.compile("[\ud800-\udfff]")


def without_halves(value: Any) -> Any:
    """A JSON value with U+FFFD in place of each half of a character."""
    try:
        to_json(value)
    except PydanticSerializationError:
        return json.loads(_HALF.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    return value
