"""Copies of frozen dataclasses, with some fields changed.

One poll makes six of them. ``dataclasses.replace`` looks at each field anew, and calls the constructor, which
in a frozen class sets one field after the other through ``object``: a tenth of the time that this package
spends on a poll. Here a function is made once for each class, as ``dataclasses`` makes the constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace as replace  # of this one, type checkers know the arguments
else:

    def replace(given, /, **changes):
        """As :func:`dataclasses.replace`, for a dataclass with slots whose constructor takes all its fields.

        Raises:
            TypeError: The class is another one, or has no field of this name.
        """
        return _replace_of(type(given))(given, **changes)


@cache
def _replace_of(kind: type[Any]) -> Callable[..., Any]:
    """:func:`replace` for one class, which has a parameter for each field, and writes into the slots."""
    names = [one.name for one in fields(kind)]
    if not (names and all(one.init for one in fields(kind)) and "__slots__" in vars(kind)):
        raise TypeError(f"{kind.__name__} has no fields, no slots, or a field that no constructor takes")
    lines = [
        f"def replace(_given, /, *, {', '.join(f'{name}=_as_given' for name in names)}):",
        " _copy = _new(_kind)",
        *(f" _write_{name}(_copy, _given.{name} if {name} is _as_given else {name})" for name in names),
        " _copy.__post_init__()" if hasattr(kind, "__post_init__") else "",
        " return _copy",
    ]
    made: dict[str, Any] = {"_new": object.__new__, "_kind": kind, "_as_given": object()}
    made |= {f"_write_{name}": getattr(kind, name).__set__ for name in names}
    exec("\n".join(lines), made)
    replace_of_kind: Callable[..., Any] = made["replace"]
    return replace_of_kind
