"""Questions of the server, put to the host as a part of the request that waits for their call.

A host that declares no such capability, or whose version has no such form, is not asked. Its question stays
open for a person who answers it elsewhere. No question reaches a model.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from mcp_types import (
    CreateMessageRequest,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    ListRootsRequest,
    ListRootsResult,
)
from pydantic import BaseModel, TypeAdapter, ValidationError

import mcp_tasks_client as tasks
from mcp_tasks_client.foreign_text import one_line
from mcp_tasks_client.forms import read_form

from .host_request import Host, HostRefusedError, Prompt
from .in_hand import InHand
from .options import Options

__all__ = ["Asker"]

logger = logging.getLogger("mcp_tasks_client")

_MOST_ATTEMPTS: Final = 3
"""Times that a host is asked one question whose answers do not fit."""

_ELICITED: Final[TypeAdapter[Any]] = TypeAdapter(ElicitResult)
_SAMPLED: Final[TypeAdapter[Any]] = TypeAdapter(CreateMessageResult | CreateMessageResultWithTools)
_ROOTS: Final[TypeAdapter[Any]] = TypeAdapter(ListRootsResult)


class _NobodyCanAnswerError(Exception):
    """The journal has no record of the call, so that no other process sees its question."""


class Asker:
    """Answers questions as callbacks of a :class:`TasksClient` do, by asking one host.

    Args:
        in_hand: The calls of the host.
        host: As it has introduced itself first.
        options: Of the bridge. If questions are not put to the host, all are left to others.
    """

    def __init__(self, in_hand: InHand, host: Host, options: Options) -> None:
        self._in_hand = in_hand
        self._host = host
        self._asks_host = options.asks_host
        self._line_for = options.line_for

    def callbacks(self) -> dict[str, Any]:
        """The callbacks as a :class:`TasksClient` takes them. Persons elsewhere answer elicitations alone."""
        declared = self._host.capabilities if self._asks_host else {}
        return {
            "elicitation": self.elicit,
            "sampling": self.sample if "sampling" in declared else None,
            "roots": self.list_roots if "roots" in declared else None,
        }

    async def elicit(self, context: tasks.InputContext, params: Any) -> Any:
        """Ask for a form, or for a visit to a URL."""
        return await self._ask(context, ElicitRequest(params=params), _ELICITED)

    async def sample(self, context: tasks.InputContext, params: Any) -> Any:
        """Ask for a message of a model of the host's."""
        return await self._ask(context, CreateMessageRequest(params=params), _SAMPLED)

    async def list_roots(self, context: tasks.InputContext) -> Any:
        """Ask for the roots."""
        return await self._ask(context, ListRootsRequest(), _ROOTS)

    async def _ask(
        self,
        context: tasks.InputContext,
        request: ElicitRequest | CreateMessageRequest | ListRootsRequest,
        answers: TypeAdapter[Any],
    ) -> Any:
        call, question = self._in_hand.asked_about(context), context.question
        if call is None:
            return None
        prompt = Prompt(context.key if question is None else question.question_id, request)
        hosts = [one.host for one in call.requests] or [self._host]
        if self._asks_host and any(one.can_be_asked(prompt) for one in hosts):
            for _ in range(_MOST_ATTEMPTS):
                try:
                    result = answers.validate_python(await call.ask_host(prompt))
                    _check(result, request.params)
                    return result
                except HostRefusedError:
                    break
                except (ValidationError, tasks.FormError):
                    continue
        if question is None:
            return None  # no other process can answer it
        if call.key is None and not call.has_task:
            raise _NobodyCanAnswerError(
                "the server asks before it makes a task, and the host cannot be asked"
            )
        call.for_persons[question.question_id] = question
        logger.warning(
            "A question of %s waits for a person, whom the host cannot ask: %s",
            one_line(call.tool, 100),
            self._line_for(question.question_id),
        )
        call.note_change()
        return None


def _check(result: BaseModel, params: Any) -> None:
    """See that an accepted form fits.

    Raises:
        FormError: It does not.
    """
    if not (isinstance(params, ElicitRequestFormParams) and isinstance(result, ElicitResult)):
        return
    if result.action == "accept":
        read_form(params).check(dict(result.content or {}))
