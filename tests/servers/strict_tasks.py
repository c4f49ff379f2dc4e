"""The tasks of the strict server, and the tools that make them: scripts, whatever the transport.

A script is a generator: each ``tasks/get`` takes one step. What a task does next depends on how
often it was polled and on what it was told, never on time (but for a ``ttl_ms`` that runs out).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeAlias

import mcp_types
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from mcp import MCPError
from mcp_types import INVALID_PARAMS
from pydantic import BaseModel, ValidationError

from tests.servers.strict_log import JSONObject

FORMS: Final[JSONObject] = {"elicitation": {"form": {}}}
"""The capability that a client declares if it can show forms."""

Script: TypeAlias = Generator[JSONObject, None, JSONObject]
"""Yields the fields of one poll after the other, and returns those of the end."""


class Task:
    """A task, moved on by being polled."""

    def __init__(self, task_id: str, interval_ms: int, ttl_ms: int | None) -> None:
        self.task_id = task_id
        self.interval_ms = interval_ms
        self.ttl_ms = ttl_ms
        self.created_at = self.updated_at = datetime.now(UTC)
        self.expires_at = None if ttl_ms is None else time.monotonic() + ttl_ms / 1000
        self.due_at = 0.0
        """``time.monotonic()`` seconds before which a poll is early."""
        self.questions: JSONObject = {}
        self.answers: dict[str, list[JSONObject]] = {}
        """All answers to each question; the first is the one that counts."""
        self.script: Script
        self.shown: JSONObject = {"status": "working"}
        self.ended = False

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and time.monotonic() >= self.expires_at

    @property
    def unanswered(self) -> JSONObject:
        return {key: asked for key, asked in self.questions.items() if key not in self.answers}

    def ask(self, questions: JSONObject, lag_polls: int) -> Script:
        """Show questions until all have an answer, and ``lag_polls`` polls longer."""
        self.questions |= questions
        while self.unanswered:
            yield asking(self.unanswered)
        for _ in range(lag_polls):  # an acknowledgement may come before the status moves
            yield asking(questions)
        return {key: self.answers[key][0] for key in questions}

    def look(self) -> JSONObject:
        """The snapshot for the next poll."""
        if not self.ended:
            try:
                fields = next(self.script)
            except StopIteration as end:
                fields = end.value
                self.ended = True
            self._show(fields)
        return self.snapshot()

    def cancel(self) -> None:
        if not self.ended:
            self.ended = True
            self._show({"status": "cancelled"})

    def answer(self, responses: JSONObject) -> list[str]:
        """Take answers.

        Returns:
            The keys that are not outstanding, which are only counted.

        Raises:
            MCPError: An answer is none to its question. None of them was taken.
        """
        outstanding = {} if self.ended else self.unanswered
        for key in responses.keys() & outstanding.keys():
            check_answer(key, outstanding[key], responses[key])
        for key in responses.keys() & self.questions.keys():
            self.answers.setdefault(key, []).append(responses[key])
        return sorted(responses.keys() - outstanding.keys())

    def snapshot(self) -> JSONObject:
        """The task as it was last shown. From here on the next poll has to wait."""
        self.due_at = time.monotonic() + self.interval_ms / 1000
        # A copy, as an in-process client gets the very object.
        return copy.deepcopy(
            {
                "taskId": self.task_id,
                "createdAt": self.created_at.isoformat().replace("+00:00", "Z"),
                "lastUpdatedAt": self.updated_at.isoformat().replace("+00:00", "Z"),
                "ttlMs": self.ttl_ms,
                "pollIntervalMs": self.interval_ms,
                **self.shown,
            }
        )

    def _show(self, fields: JSONObject) -> None:
        if fields != self.shown:
            self.updated_at = datetime.now(UTC)
        self.shown = fields


def working(message: str) -> JSONObject:
    return {"status": "working", "statusMessage": message}


def asking(questions: JSONObject) -> JSONObject:
    return {"status": "input_required", "inputRequests": questions}


def completed(structured: JSONObject) -> JSONObject:
    return {"status": "completed", "result": content(structured)}


def content(structured: JSONObject) -> JSONObject:
    text = {"type": "text", "text": json.dumps(structured)}
    return {
        "resultType": "complete",  # the SDK fills it in for its own types, not for a dict
        "content": [text],
        "structuredContent": structured,
        "isError": False,
    }


def tool_error(message: str) -> JSONObject:
    return {"resultType": "complete", "content": [{"type": "text", "text": message}], "isError": True}


def form(message: str, name: str) -> JSONObject:
    """A question for one required text."""
    schema = obj({name: {"type": "string"}}, required=[name])
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def obj(properties: JSONObject, required: list[str] | None = None) -> JSONObject:
    return {
        "type": "object",
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


ANSWERS: Final[Mapping[str, type[BaseModel]]] = {
    "elicitation/create": mcp_types.ElicitResult,
    "sampling/createMessage": mcp_types.CreateMessageResult,
    "roots/list": mcp_types.ListRootsResult,
}


def check_answer(key: str, question: JSONObject, answer: object) -> None:
    """Raise MCPError -32602 unless ``answer`` is one to ``question``."""
    try:
        read = ANSWERS[question["method"]].model_validate(answer, by_name=False)
    except ValidationError:
        raise MCPError(INVALID_PARAMS, f"the answer {key!r} is none to {question['method']}") from None
    if isinstance(read, mcp_types.ElicitResult) and read.action == "accept":
        problem = mismatch(read.content or {}, question["params"]["requestedSchema"])
        if problem is not None:
            raise MCPError(INVALID_PARAMS, f"the answer {key!r} does not match the form: {problem}")


def mismatch(value: object, schema: JSONObject) -> str | None:
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    return None if error is None else str(error.message)


def slow(task: Task, polls: int = 2) -> Script:
    for poll in range(1, polls + 1):
        yield working(f"poll {poll} of {polls}")
    return completed({"polls": polls})


def ask(task: Task, lag_polls: int = 0) -> Script:
    answers = yield from task.ask({"name": form("What is your name?", "name")}, lag_polls)
    return completed({"answer": answers["name"], "times": len(task.answers["name"])})


def ask_many(task: Task, lag_polls: int = 0) -> Script:
    said = {"role": "user", "content": {"type": "text", "text": "2 + 2?"}}
    questions = {
        "colour": form("Which colour?", "colour"),
        "size": form("Which size?", "size"),
        "model": {"method": "sampling/createMessage", "params": {"messages": [said], "maxTokens": 16}},
        "roots": {"method": "roots/list"},
    }
    answers = yield from task.ask(questions, lag_polls)
    return completed({"answers": answers, "times": {key: len(all_) for key, all_ in task.answers.items()}})


def failing_tool(task: Task) -> Script:
    yield working("about to fail")
    return {"status": "completed", "result": tool_error("the tool said no")}


def rpc_failure(task: Task, code: int = -32050) -> Script:
    yield working("about to fail")
    error = {"code": code, "message": "quota exceeded", "data": {"retryAfter": 7}}
    return {"status": "failed", "statusMessage": "no more today", "error": error}


def endless(task: Task) -> Script:
    while True:
        yield working("until cancelled")


def bad_result(task: Task) -> Script:
    yield working("about to break a promise")
    return completed({"polls": "many"})


def odd_task(task: Task, kind: str = "unknown_status") -> Script:
    if kind == "unknown_status":
        yield {"status": "paused", "mood": {"colour": "green"}, "statusMessage": "a word of tomorrow"}
    return completed({"kind": kind})


def one_more_poll(task: Task, answer: JSONObject) -> Script:
    yield working("thinking about the answer")
    return completed({"answer": answer})


@dataclass(frozen=True, kw_only=True)
class TaskTool:
    """A tool that always makes a task."""

    script: Callable[..., Script]
    """Called with the task and those arguments that are not every task's."""

    description: str
    arguments: JSONObject = field(default_factory=dict)
    output: JSONObject | None = None
    needs: JSONObject = field(default_factory=dict)
    """Capabilities besides the extension."""


WHOLE: Final[JSONObject] = {"type": "integer", "minimum": 0}
TIMES: Final[JSONObject] = {
    "interval_ms": WHOLE | {"default": 20},
    "ttl_ms": {"type": ["integer", "null"], "minimum": 0, "default": 60_000},
}
POLLS: Final = obj({"polls": WHOLE}, required=["polls"])
LAG: Final = {
    "lag_polls": WHOLE | {"description": "polls for which answered questions still show"},
    "undeclared": {"type": "boolean", "description": "ask a client that declares no such capability, too"},
}
KINDS: Final = ["no_status", "unknown_status", "strange_id", "done_at_creation"]

TASK_TOOLS: Final[Mapping[str, TaskTool]] = {
    "slow": TaskTool(
        script=slow, description="Works for some polls.", arguments={"polls": WHOLE}, output=POLLS
    ),
    "ask": TaskTool(
        script=ask,
        description="One form. Says what was answered, and how often.",
        arguments=LAG,
        output=obj({"answer": {"type": "object"}, "times": WHOLE}, required=["answer", "times"]),
        needs=FORMS,
    ),
    "ask_many": TaskTool(
        script=ask_many,
        description="Two forms, a sampling request and the roots, at once.",
        arguments=LAG,
        output=obj({"answers": {"type": "object"}, "times": {"type": "object"}}, required=["answers"]),
        needs={**FORMS, "sampling": {}, "roots": {}},
    ),
    "tool_error": TaskTool(script=failing_tool, description="Completes with isError."),
    "rpc_failure": TaskTool(
        script=rpc_failure, description="Fails.", arguments={"code": {"type": "integer"}}
    ),
    "endless": TaskTool(script=endless, description="Works until it is cancelled."),
    "bad_result": TaskTool(script=bad_result, description="Breaks its output schema.", output=POLLS),
    "odd_task": TaskTool(
        script=odd_task,
        description="Is unlike what the specification has, or only just allowed.",
        arguments={"kind": {"enum": KINDS}},
        output=obj({"kind": {"enum": KINDS}}, required=["kind"]),
    ),
}

TOOLS: Final[Mapping[str, mcp_types.Tool]] = {
    tool.name: tool
    for tool in (
        mcp_types.Tool(
            name="echo",
            description="Answers at once.",
            input_schema=obj({"text": {"type": "string"}}, required=["text"]),
            output_schema=obj({"text": {"type": "string"}}, required=["text"]),
        ),
        mcp_types.Tool(
            name="header_arg",
            description="Answers at once. The region travels as Mcp-Param-Region, too.",
            input_schema=obj(
                {"region": {"type": "string", "x-mcp-header": "Region"}, "load": WHOLE}, required=["region"]
            ),
            output_schema=obj({"region": {"type": "string"}}, required=["region"]),
        ),
        mcp_types.Tool(
            name="ask_first",
            description="Asks before it begins, then answers at once or makes a task.",
            input_schema=obj({"then": {"enum": ["task", "result"], "default": "task"}, **TIMES}),
            output_schema=obj({"answer": {"type": "object"}}, required=["answer"]),
        ),
        mcp_types.Tool(name="witness", description="The log so far.", input_schema=obj({})),
        *(
            mcp_types.Tool(
                name=name,
                description=tool.description,
                input_schema=obj({**tool.arguments, **TIMES}),
                output_schema=tool.output,
            )
            for name, tool in TASK_TOOLS.items()
        ),
    )
}
