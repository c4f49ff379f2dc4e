"""The limit of a test: what has happened until then stands in the failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import anyio

__all__ = ["limited"]


@contextmanager
def limited(seconds: float, sent: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Fail after so many seconds, as ``anyio.fail_after`` does, and say what was sent to the server by then.

    Args:
        seconds: By the event loop's clock.
        sent: The method of each request.
    """
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        methods = [*sent()]
        counts = ", ".join(f"{method} {count} times" for method, count in Counter(methods).items())
        last = " → ".join(methods[-5:])
        raise TimeoutError(
            f"not over after {seconds:g} s. The server was sent {counts or 'nothing'}; at last {last}"
        )
