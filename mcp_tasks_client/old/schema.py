"""Values against the JSON Schemas that a server sent: forms before they go, results when they come."""

from __future__ import annotations

from typing import Any, Final

_LONGEST_LINE: Final = 300


class UnusableSchemaError(ValueError):
    """The schema itself is not valid, so nothing can be said about the value."""


def load() -> None:
    """Import what :func:`mismatch` needs, which takes long enough to matter once."""
    import jsonschema  # noqa: F401  # for its effect
    import referencing  # noqa: F401  # as above


def mismatch(value: Any, schema: dict[str, Any]) -> str | None:
    """Why ``value`` does not match ``schema``, in one line; ``None`` if it does.

    References are resolved inside the schema only: a server must not make us fetch anything.

    Raises:
        UnusableSchemaError: The schema is not a valid one, or refers to something outside itself.
    """
    # Imported on use: it takes longer to import than all of this package, and most calls need none.
    from jsonschema import Draft202012Validator, SchemaError, validators
    from jsonschema.exceptions import best_match
    from referencing import Registry

    try:
        kind = validators.validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        error = best_match(kind(schema, registry=Registry()).iter_errors(value))
    except SchemaError as problem:
        raise UnusableSchemaError(_line(problem.message)) from None
    except Exception as problem:
        # A schema is whatever a server sent, and the validator trusts it: a reference to nothing, a
        # circle, a pattern that does not compile, a number that no float holds each raise their own.
        raise UnusableSchemaError(_line(f"{type(problem).__name__}: {problem}")) from None
    return None if error is None else _line(f"{error.json_path}: {error.message}")


def _line(text: str) -> str:
    """``text`` on one line, and no novel: values and names in it may be of any length."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…"
