"""What the ways in are, and the host that goes them: its callbacks, and what they were asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
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

from ._versions import SDK_STARTS_COMMANDS

__all__ = ["LIMIT_S", "WAYS", "Host", "Kind", "Way"]

LIMIT_S: Final = 30.0
"""Of everything that is waited for between opening a way and closing it."""

Kind: TypeAlias = Literal["native", "mcp-http", "mcp-stdio", "mcp-in-process", "fastmcp-http", "session-http"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way in."""

    kind: Kind
    mode: Literal["native", "dropped", "wrapped"]

    def __str__(self) -> str:
        return self.kind if self.kind == self.mode else f"{self.kind}-{self.mode}"

    @property
    def over_http(self) -> bool:
        return self.kind not in ("mcp-stdio", "mcp-in-process")


STDIO: Final[tuple[Kind, ...]] = ("mcp-stdio",) if SDK_STARTS_COMMANDS else ()
KINDS: Final[tuple[Kind, ...]] = ("mcp-http", *STDIO, "mcp-in-process", "fastmcp-http", "session-http")
WAYS: Final = (Way("native", "native"), *(Way(k, m) for k in KINDS for m in ("dropped", "wrapped")))


class Host:
    """The host's callbacks, in the SDK's shape and in FastMCP's, and what they were asked.

    Attributes:
        asked: The messages of forms; ``model`` and ``roots`` for the others.
        at_once: How many forms were up at the same time, at most, or how many others.
        prompted: Set at the first prompt.
        withdrawn: Set when a prompt was cancelled.
        refuses: Whether every question is answered by an error.
        hesitates: Whether no question is ever answered.
    """

    KNOWN: Final = {"name": "Ada", "colour": "red", "size": "XL", "sure": "yes", "amount": "2 kg"}

    def __init__(self, *, refuses: bool = False, hesitates: bool = False, **known: str) -> None:
        self.asked: list[str] = []
        self.at_once = 0
        self.refuses = refuses
        self.hesitates = hesitates
        self.prompted = anyio.Event()
        self.withdrawn = anyio.Event()
        self._up = Counter[str]()
        self._known = {**self.KNOWN, **known}

    async def elicit(self, context: Any, params: Any) -> ElicitResult | ErrorData:
        async with self._prompt(params.message):
            if self.refuses:
                return ErrorData(code=-1, message="nobody at home")
            if isinstance(params, ElicitRequestURLParams):
                return ElicitResult(action="accept")
            fields = params.requested_schema["properties"]
            return ElicitResult(action="accept", content={name: self._known[name] for name in fields})

    async def sample(self, context: Any, params: Any) -> CreateMessageResult | ErrorData:
        async with self._prompt("model", "others"):
            four = TextContent(type="text", text="4")
            return CreateMessageResult(role="assistant", content=four, model="m")

    async def roots(self, context: Any) -> ListRootsResult | ErrorData:
        async with self._prompt("roots", "others"):
            return ListRootsResult(roots=[Root(uri=FileUrl("file:///tmp"))])

    @asynccontextmanager
    async def _prompt(self, message: str, among: str = "forms") -> AsyncIterator[None]:
        self.asked.append(message)
        self._up[among] += 1
        self.at_once = max(self.at_once, *self._up.values())
        self.prompted.set()
        try:
            if self.hesitates:
                await anyio.sleep_forever()
            for _ in range(20):  # long enough for another prompt to come up beside it
                await anyio.lowlevel.checkpoint()
            yield
        except anyio.get_cancelled_exc_class():
            self.withdrawn.set()
            raise
        finally:
            self._up[among] -= 1

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

        from fastmcp.client.elicitation import ElicitResult as FastMCPElicitResult

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
