"""The server's questions, put to the host by its own session where the way in has no callback."""

from __future__ import annotations

from ..protocol import JSONObject
from ..protocol.replies import RpcError
from ..protocol.text import quote
from ..questions.answers import NoAnswerError, fit_answer
from ..questions.callbacks import InputContext, Inputs
from ..questions.kinds import KINDS, can_be_asked, is_for_person

__all__ = ["HostInputs", "read_answer", "tell_refusal"]


class HostInputs(Inputs):
    """Leaves every question to the host, whose session declares these client capabilities."""

    leaves_questions = True

    def __init__(self, declared: JSONObject) -> None:
        names = [kind.name for kind in KINDS.values()]
        self._capabilities = {name: declared[name] for name in names if name in declared}

    @property
    def capabilities(self) -> JSONObject:
        """The host's capabilities by which it can be asked."""
        return self._capabilities

    async def answer(self, context: InputContext, request: JSONObject) -> JSONObject:
        """The host's answer, if the host can be asked now.

        Raises:
            NoAnswerError: The host cannot be asked now. The call parks, and if the host can answer at all,
                the reply to its ``tools/call`` carries the question.
        """
        ask = None if context.context is None else context.context.ask
        if not can_be_asked(request, self._capabilities):
            raise NoAnswerError(
                f"the host's session declares nothing that could answer {quote(str(request.get('method')))}; "
                "give the session a callback, or the transport"
            )
        if ask is None:
            raise NoAnswerError("the reply to the call asks the host")
        refused = None if context.question is None else context.question.refused
        return read_answer(request, await ask(tell_refusal(request, refused)))


def tell_refusal(request: JSONObject, words: str | None) -> JSONObject:
    """A question with the server's refusal of the last answer in its message, the part that a person sees.

    ``words`` are the server's; ``None`` if it has refused no answer. Only elicitations carry them.
    """
    params = request.get("params")
    if words is None or not is_for_person(request) or not isinstance(params, dict):
        return request
    message = f"{params.get('message', '')}\n\nThe last answer was refused: {words}"
    return {**request, "params": {**params, "message": message}}


def read_answer(request: JSONObject, answer: JSONObject | RpcError) -> JSONObject:
    """The answer in the reply of a host's session to a question.

    Raises:
        NoAnswerError: The host has refused, or its reply is no answer to the question.
    """
    if isinstance(answer, RpcError):
        raise NoAnswerError(f"the host refused with error {answer.code}: {quote(answer.message)}", answer)
    return fit_answer(request, answer)
