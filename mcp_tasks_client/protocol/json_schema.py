"""Values against the JSON Schemas that a server sent: forms before they go, results when they come."""

from __future__ import annotations

from typing import Any

from .text import quote

__all__ = ["TooCostlyError", "UnusableSchemaError", "find_mismatch", "load_validator"]


class UnusableSchemaError(ValueError):
    """The schema itself is not valid, so nothing can be said about the value. The message says why."""


class TooCostlyError(ValueError):
    """The value cannot be checked within bounds. The message says which bound is passed."""


def load_validator() -> None:
    """Import what :func:`find_mismatch` needs, which takes some milliseconds once."""
    import jsonschema_rs  # noqa: F401  # for its effect


def find_mismatch(value: Any, schema: dict[str, Any]) -> str | None:
    """Why ``value`` does not match ``schema``, in one line; ``None`` if it does."""
    import jsonschema_rs

    try:
        validator = jsonschema_rs.validator_for(schema, mask="the value", offline=True)
        error = next(validator.iter_errors(value), None)
    except ValueError as problem:
        raise UnusableSchemaError(quote(str(problem))) from None
    return None if error is None else quote(error.message)
