"""What clients of the SDK raise when they are closed, for the tests that close them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import trio

__all__ = ["closing_quietly"]


@contextmanager
def closing_quietly() -> Iterator[None]:
    """Pass over what the SDK's own stream raises on trio when a client is closed under a reply.

    The reply of a request that was given up is read by a task of the stream. On trio the SDK sometimes
    closes the place to put it first, and the task ends with an error.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        if not trio.lowlevel.in_trio_run():
            raise
        _, others = group.split(anyio.BrokenResourceError)
        if others is not None:
            raise others from None
