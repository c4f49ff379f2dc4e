"""Values against the JSON Schemas that a server sent: forms before they go, results when they come."""

from __future__ import annotations

import re
from typing import Any


class UnusableSchemaError(ValueError):
    """The schema itself is not valid, so nothing can be said about the value."""


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
    from referencing.exceptions import Unresolvable

    kind = validators.validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        error = best_match(kind(schema, registry=Registry()).iter_errors(value))
    except SchemaError as problem:
        raise UnusableSchemaError(problem.message) from None
    except (Unresolvable, RecursionError, re.error) as problem:
        raise UnusableSchemaError(f"{type(problem).__name__}: {problem}") from None
    return None if error is None else f"{error.json_path}: {error.message}"
