"""The kinds of questions that a server asks: one entry each, which all other modules read. Pure.

A fourth kind is a fourth entry, its classes in the two aliases, and a callback that the public classes take.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    ListRootsRequest,
    ListRootsResult,
    RequestParams,
)
from pydantic import BaseModel

from ..protocol import JSONObject

__all__ = [
    "KINDS",
    "Answer",
    "Kind",
    "QuestionParams",
    "can_be_asked",
    "is_declared",
    "is_for_person",
    "kind_of",
]

QuestionParams: TypeAlias = (
    ElicitRequestFormParams | ElicitRequestURLParams | CreateMessageRequestParams | RequestParams
)
"""The params of a question, in the SDK's classes."""

Answer: TypeAlias = ElicitResult | CreateMessageResult | CreateMessageResultWithTools | ListRootsResult
"""The answer to a question, in the SDK's classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of question."""

    method: str
    name: str
    """The name of the client capability that declares it, and of the callback that answers it."""

    capability: JSONObject
    """The capability, where a callback answers everything of the kind."""

    request: type[BaseModel]
    """The SDK's class of the whole request."""

    params: type[BaseModel]
    needs_params: bool = True
    """Whether a question without params is malformed. If not, its callback need not take them."""

    answers: tuple[type[BaseModel], ...]
    """The SDK's classes of an answer. The last one reads each of them."""

    asks_person: bool = False
    """Whether a person answers, rather than a program."""

    may_be_task: bool = True
    """Whether a server may have the client make a task of the question, where the version has that."""

    def params_for(self, params: object) -> type[BaseModel] | None:
        """The class that reads these params; ``None`` if there is nothing to read."""
        return None if params is None and not self.needs_params else self.params

    def is_understood(self, params: object, capability: Any) -> bool:
        """Whether a host with such a capability can be asked with these params, which may be malformed."""
        return True


class _Elicitation(Kind):
    """A form to fill in, or a URL to visit."""

    __slots__ = ()

    def params_for(self, params: object) -> type[BaseModel]:
        """The class of a form, or of a URL."""
        is_form = isinstance(params, dict) and params.get("mode", "form") == "form"
        return ElicitRequestFormParams if is_form else ElicitRequestURLParams

    def is_understood(self, params: object, capability: Any) -> bool:
        """True if the capability has the mode. Without a mode, as in older clients, it is for forms only."""
        is_url = isinstance(params, dict) and params.get("mode") == "url"
        return not is_url or "url" in capability


KINDS: Final[Mapping[str, Kind]] = {
    kind.method: kind
    for kind in (
        _Elicitation(
            method="elicitation/create",
            name="elicitation",
            capability={"form": {}, "url": {}},
            request=ElicitRequest,
            params=ElicitRequestFormParams,
            answers=(ElicitResult,),
            asks_person=True,
        ),
        Kind(
            method="sampling/createMessage",
            name="sampling",
            capability={},
            request=CreateMessageRequest,
            params=CreateMessageRequestParams,
            answers=(CreateMessageResult, CreateMessageResultWithTools),
        ),
        Kind(
            method="roots/list",
            name="roots",
            capability={},
            request=ListRootsRequest,
            params=RequestParams,
            needs_params=False,
            answers=(ListRootsResult,),
            may_be_task=False,
        ),
    )
}
"""By the method with which a server asks."""


def kind_of(method: object) -> Kind | None:
    """The kind of a server's request; ``None`` if it is no question, or no method at all."""
    return KINDS.get(method) if isinstance(method, str) else None


def is_for_person(request: JSONObject) -> bool:
    """True if a person answers a server's request, rather than a program."""
    kind = kind_of(request.get("method"))
    return kind is not None and kind.asks_person


def is_declared(method: object, declared: Container[str]) -> bool:
    """True if these client capabilities declare the kind of a server's request."""
    kind = kind_of(method)
    return kind is not None and kind.name in declared


def can_be_asked(request: JSONObject, declared: Mapping[str, Any]) -> bool:
    """True if a host that declares these client capabilities can answer a server's request.

    A malformed request raises nothing.
    """
    kind = kind_of(request.get("method"))
    return (
        kind is not None
        and kind.name in declared
        and kind.is_understood(request.get("params"), declared[kind.name])
    )
