"""JSON of requests and replies: written in ASCII, and read leniently."""

from __future__ import annotations

import json
from typing import Any, Final

from ..protocol import JSONObject

__all__ = ["encode_json", "parse_json"]

_JSON: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # json.dumps would make one each time


def encode_json(value: JSONObject, method: str) -> str:
    """Params, or a part of them, as JSON in ASCII, so that a lone surrogate survives it.

    Raises:
        ValueError: It holds NaN, an infinity, itself, or more levels than Python can follow.
        TypeError: It holds something that has no JSON form.
    """
    subject = f"the params of {method}"
    try:
        return _JSON.encode(value)
    except RecursionError:
        raise ValueError(f"{subject} are nested too deeply for JSON") from None
    except ValueError as error:
        raise ValueError(f"{subject} must be plain JSON: {error}") from error
    except TypeError as error:
        raise TypeError(f"{subject} must be plain JSON: {error}") from error


def parse_json(text: str | bytes) -> Any:
    """JSON as the standard library reads it, but too large an integer is infinity, as a float is.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
            raise
        # Python converts 4,300 digits. A task ID must not be lost for a number beside it.
        return json.loads(text, parse_int=_read_integer)


def _read_integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)
