"""Somebody whom a host asks: its callbacks, as each SDK takes them, and what they were asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.lowlevel
from fastmcp.client.elicitation import ElicitResult as FastMCPElicitResult
from mcp_types import (
    CreateMessageResult,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from mcp_tasks_client import MemoryJournal, TasksClient

__all__ = ["KNOWN", "Person"]

KNOWN: Final = {"name": "Ada", "colour": "red", "size": "XL", "sure": "yes", "amount": "2 kg"}
"""What a host answers to each field of a form."""


class Person:
    """The host's callbacks, in the SDK's shape and in FastMCP's, and what they were asked.

    Attributes:
        asked: The messages of forms; ``model`` and ``roots`` for the others.
        at_once: The most forms that were open at the same time.
        prompted: Set at the first prompt.
        withdrawn: Set when a prompt was cancelled.
        refuses: Whether every question is answered by an error.
        hesitates: Whether no question is ever answered.

    Args:
        takes_s: Seconds for which each question is thought about.
        known: What is answered to fields of forms, besides :data:`KNOWN`.
    """

    def __init__(
        self, *, refuses: bool = False, hesitates: bool = False, takes_s: float = 0.0, **known: str
    ) -> None:
        self.asked: list[str] = []
        self.at_once = 0
        self.refuses = refuses
        self.hesitates = hesitates
        self.prompted = anyio.Event()
        self.withdrawn = anyio.Event()
        self._open = Counter[str]()
        self._takes_s = takes_s
        self._known = {**KNOWN, **known}

    async def elicit(self, context: Any, params: Any) -> ElicitResult | ErrorData:
        async with self._prompt(params.message):
            if self.refuses:
                return ErrorData(code=-1, message="nobody at home")
            if isinstance(params, ElicitRequestURLParams):
                return ElicitResult(action="accept")
            fields = params.requested_schema["properties"]
            return ElicitResult(action="accept", content={name: self._known[name] for name in fields})

    async def sample(self, context: Any, params: Any) -> CreateMessageResult | ErrorData:
        async with self._prompt("model", among="others"):
            four = TextContent(type="text", text="4")
            return CreateMessageResult(role="assistant", content=four, model="m")

    async def roots(self, context: Any) -> ListRootsResult | ErrorData:
        async with self._prompt("roots", among="others"):
            return ListRootsResult(roots=[Root(uri=FileUrl("file:///tmp"))])

    @asynccontextmanager
    async def _prompt(self, message: str, among: str = "forms") -> AsyncIterator[None]:
        self.asked.append(message)
        self._open[among] += 1
        self.at_once = max(self.at_once, self._open["forms"])
        self.prompted.set()
        try:
            if self.hesitates:
                await anyio.sleep_forever()
            await anyio.sleep(self._takes_s)
            for _ in range(20):  # long enough for another prompt to open beside it
                await anyio.lowlevel.checkpoint()
            yield
        except anyio.get_cancelled_exc_class():
            self.withdrawn.set()
            raise
        finally:
            self._open[among] -= 1

    @asynccontextmanager
    async def client(
        self, url: str, journal: Any = None, *, limit_s: float = 30.0, **options: Any
    ) -> AsyncIterator[TasksClient]:
        """A client of ours that has its forms and samplings answered here, for some seconds at most."""
        callbacks = {"elicitation": self.elicit, "sampling": self.sample, **options}
        with anyio.fail_after(limit_s):
            async with TasksClient(url, journal=journal or MemoryJournal(), **callbacks) as client:
                yield client

    @property
    def ours(self) -> dict[str, Any]:
        """As the extension and ``TasksClient`` take them."""
        return {"elicitation": self.elicit, "sampling": self.sample, "roots": self.roots}

    @property
    def sdks(self) -> dict[str, Any]:
        """As ``mcp.Client`` and ``ClientSession`` take them."""
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.roots,
        }

    @property
    def fastmcps(self) -> dict[str, Any]:
        """As ``fastmcp.Client`` takes them; what a handler raises, it turns into ``ErrorData``."""

        async def elicit(message: str, response_type: Any, params: Any, context: Any) -> Any:
            answer = await self.elicit(context, params)
            if isinstance(answer, ErrorData):
                raise RuntimeError(answer.message)
            # Before 4.1 FastMCP takes the SDK's own ElicitResult for the content.
            return FastMCPElicitResult(action=answer.action, content=answer.content)

        async def sample(messages: Any, params: Any, context: Any) -> Any:
            return await self.sample(context, params)

        async def roots(context: Any) -> list[Root]:
            answer = await self.roots(context)
            assert isinstance(answer, ListRootsResult)
            return answer.roots

        return {"elicitation_handler": elicit, "sampling_handler": sample, "roots": roots}
