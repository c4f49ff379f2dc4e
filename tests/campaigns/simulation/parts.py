"""The parts of a history. A mutant replaces one of them by a broken one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from sys import modules
from types import ModuleType
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import httpx

from mcp_tasks_client import MemoryJournal, PollPolicy, TasksClient
from mcp_tasks_client.machine import Step, advance
from mcp_tasks_client.machine.events import Event
from mcp_tasks_client.machine.states import State

from ..shared_journal import ProcessJournal
from .process import Line, Process
from .seams import DroppedIn

__all__ = ["WHOLE", "Advance", "Options", "Parts", "advancing", "rebound"]

Options: TypeAlias = dict[str, Any]
"""The options of a client, by the names that ``TasksClient`` has for them."""

Advance: TypeAlias = Callable[[State, Event, PollPolicy], Step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All that a mutant can replace in a history."""

    disk: type[MemoryJournal] = MemoryJournal
    """Keeps the records of all processes."""

    journal: type[ProcessJournal] = ProcessJournal
    line: type[Line] = Line
    client: type[TasksClient] = TasksClient
    dropped_in: type[DroppedIn] = DroppedIn

    options: Callable[[Process, Options], Options] = lambda process, options: options
    """Changes the options that a process gives to its clients."""

    headers: Callable[[Callable[[], dict[str, str]]], Any] = lambda ask: ask
    """Changes the headers that a session over HTTP is given."""

    transport: Callable[[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport] = lambda inner: inner
    """Changes how such a session sends its requests."""

    patched: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered for as long as the history lasts."""


WHOLE: Final = Parts()
"""Nothing is broken."""


@contextmanager
def rebound(function: Callable[..., Any], other: Callable[..., Any], *besides: ModuleType) -> Iterator[None]:
    """Replace a public function in each module of the package that has bound it, and in others given."""
    ours = [module for name, module in list(modules.items()) if name.startswith("mcp_tasks_client")]
    with ExitStack() as stack:
        for module in (*ours, *besides):
            for name in [name for name, value in vars(module).items() if value is function]:
                stack.enter_context(patch.object(module, name, other))
        yield


def advancing(change: Callable[[Advance, State, Event, PollPolicy], Step]) -> Parts:
    """Replace the machine. The change gets the true ``advance``, and its arguments."""
    return Parts(patched=partial(rebound, advance, partial(change, advance)))
