"""The params of a question, and whether an answer fits the question. Every answer is checked here."""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from typing import Any, Final, TypeVar

from mcp_types import ElicitRequestFormParams, ElicitResult, Result
from pydantic import BaseModel, ValidationError

from ..protocol import JSONObject
from ..protocol.json_schema import FORM_STEPS, UnusableSchemaError, find_mismatch
from ..protocol.replies import RpcError
from ..protocol.text import is_encodable, quote
from .kinds import Kind, QuestionParams, kind_of

__all__ = [
    "NoAnswerError",
    "QuestionParams",
    "check_form",
    "dump_answer",
    "fill_answer",
    "fill_form",
    "fit_answer",
    "note_pattern",
    "read_params",
]

logger = logging.getLogger("mcp_tasks_client")

_MOST_PATTERNS: Final = 1024

ParamsT = TypeVar("ParamsT", bound=BaseModel)


class NoAnswerError(Exception):
    """A question got no answer that can be sent. The message has the reason and a remedy.

    Attributes:
        refusal: The host's own error, to be sent instead; ``None`` if the host gave none.
    """

    def __init__(self, message: str, refusal: RpcError | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


def read_params(request: JSONObject) -> QuestionParams | None:
    """The params of a server's request; ``None`` for a ``roots/list`` without any.

    Raises:
        NoAnswerError: They are malformed, or no client can answer the method.
    """
    kind, params = _kind_of(request), request.get("params")
    model = kind.params_for(params)
    read: Any = None if model is None else _read(model, params)
    return read  # type: ignore[no-any-return]


def _kind_of(request: JSONObject) -> Kind:
    method = request.get("method")
    kind = kind_of(method)
    if kind is None:
        raise NoAnswerError(f"the server asked {quote(repr(method))}, which no client can answer")
    return kind


def fit_answer(request: JSONObject, answer: JSONObject) -> JSONObject:
    """The answer to send: the one given, filled as by :func:`fill_form`, if it fits its request.

    Both are in their form on the wire.

    Raises:
        NoAnswerError: It does not fit. The message says where, and quotes nothing of the answer.
    """
    if not _is_encodable(answer):
        raise NoAnswerError("the answer holds half of a character (a surrogate)")
    kind = kind_of(request.get("method"))
    model = Result if kind is None else kind.answers[-1]
    try:
        model.model_validate(answer, by_name=False)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = quote(".".join(map(str, problem["loc"])) or "the answer")
        raise NoAnswerError(f"the answer is malformed, {where}: {problem['msg']}") from None
    filled, misfit = fill_answer(request, answer)
    if misfit is not None:
        raise NoAnswerError(f"the answer does not match the requestedSchema, {misfit}")
    return filled


def fill_answer(request: JSONObject, answer: JSONObject) -> tuple[JSONObject, str | None]:
    """A well-formed answer as it is sent, and why it does not match the form of its request, if so.

    A form that is accepted is filled as by :func:`fill_form`. Content belongs to nothing else: a person who
    has declined did not mean to send it.

    Raises:
        NoAnswerError: The form's schema cannot be used.
    """
    kind, params = kind_of(request.get("method")), request.get("params")
    if kind is None or ElicitResult not in kind.answers:
        return answer, None
    if answer.get("action") != "accept" or kind.params_for(params) is not ElicitRequestFormParams:
        return {name: value for name, value in answer.items() if name != "content"}, None
    form = _read(ElicitRequestFormParams, params)
    content = fill_form(answer.get("content") or {}, form)
    return {**answer, "content": content}, check_form(content, form)


def fill_form(content: JSONObject, form: ElicitRequestFormParams) -> JSONObject:
    """The content of a form with the default of each required field that it leaves out.

    An optional field that is left out is an answer of its own.
    """
    fields, required = (form.requested_schema.get(name) for name in ("properties", "required"))
    if not (isinstance(fields, dict) and isinstance(required, list)):
        return content
    left_out = [name for name in required if isinstance(name, str) and name not in content]
    described = {name: fields[name] for name in left_out if isinstance(fields.get(name), dict)}
    return {**{name: one["default"] for name, one in described.items() if "default" in one}, **content}


def check_form(content: JSONObject, form: ElicitRequestFormParams) -> str | None:
    """The mismatch of a form's content and its schema, in words; ``None`` if there is none.

    Raises:
        NoAnswerError: The schema cannot be used.
    """
    try:
        return find_mismatch(content, form.requested_schema, FORM_STEPS, note_pattern)
    except UnusableSchemaError as error:
        raise NoAnswerError(f"the server's requestedSchema cannot be used: {error}") from None


@lru_cache(maxsize=_MOST_PATTERNS)
def note_pattern(pattern: str) -> None:
    """Log that a pattern of a form is passed over, once for each pattern."""
    logger.warning(
        "A form has the pattern %s, which cannot be read here. No answer is checked against it: the server "
        "checks it.",
        quote(pattern),
    )


def dump_answer(result: BaseModel) -> JSONObject:
    """An answer in its form on the wire.

    Raises:
        ValueError: It has no JSON form.
    """
    # Through text, since an answer without a JSON form could be neither journaled nor sent.
    dumped = result.model_dump(by_alias=True, exclude_none=True, mode="json", warnings=False)
    answer: Any = json.loads(json.dumps(dumped, allow_nan=False))
    assert isinstance(answer, dict)
    if not _is_encodable(answer):
        raise ValueError("it holds half of a character (a surrogate)")
    return answer


def _is_encodable(answer: JSONObject) -> bool:
    # An answer that cannot be sent would, once journaled, break every client that takes it up.
    return is_encodable(json.dumps(answer, ensure_ascii=False))


def _read(model: type[ParamsT], params: object) -> ParamsT:
    try:
        return model.model_validate(params, extra="allow")
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = quote(".".join(map(str, problem["loc"])) or "params")
        raise NoAnswerError(f"the server's request is malformed, {where}: {quote(problem['msg'])}") from None
