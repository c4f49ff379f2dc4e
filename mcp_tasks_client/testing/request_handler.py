"""The requests to a scripted server, over HTTP or in memory: answered by its tools, tasks and faults."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from mcp_types import METHOD_NOT_FOUND, Tool

from ..aio.clock import Clock
from ..protocol import EXTENSION_ID, PROTOCOL_VERSION, JSONObject
from ..sessions.base import INVALID_PARAMS
from ..sessions.param_headers import HeaderMap, header_map
from .faults import (
    ErrorReply,
    Fault,
    Garbled,
    HttpError,
    LostReply,
    LostRequest,
    RefusedError,
    Stale,
    Unheeded,
    Unreachable,
    delay_s,
)
from .faults import Reply as WireReply
from .http_headers import find_missing, refuse_missing, refuse_without_capability
from .notifications import LISTEN, Notifies, Stream
from .steps import Answers, AskFirst, Reply, Step, check_steps
from .timeline import Timeline, Traits, check_answers, make_result
from .witness import Arrival, Witness

__all__ = ["Exchange", "Plan", "RequestHandler", "identify_by_arguments"]

Plan: TypeAlias = Sequence[Step] | Callable[[JSONObject], Sequence[Step]]
"""The steps of a tool, or a function that makes them from the arguments of a call."""

_DONE: Final[JSONObject] = {"resultType": "complete"}


@dataclass(frozen=True, slots=True)
class _Tool:
    listed: Tool
    plan: Plan
    headers: HeaderMap
    traits: Traits


@dataclass(frozen=True, slots=True)
class _Round:
    """A call that the client is to send again with answers. The server finds it by its ``requestState``."""

    tool: str
    arguments: JSONObject
    steps: Sequence[Step]
    index: int = 0
    answers: Answers = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request, and the reply to it."""

    arrival: Arrival
    reply: WireReply | Stream
    after_s: float
    """Seconds by which the reply is delayed. Infinity if it never comes."""


class RequestHandler:
    """Logs each request, picks its fault, and answers it.

    Args:
        clock: The server's.
        witness: Told of every request, every reply, every tool that ran and every accepted answer.
        identify: Returns the intent of a call, from the tool's name and the arguments.
        new_task_id: Makes the task IDs.

    Attributes:
        clock: As given.
        notifies: How ``subscriptions/listen`` is answered; ``None`` knows no such method.
        on_request: Called with each request. Returns a fault, or ``None`` if all is to go well.
    """

    def __init__(
        self,
        clock: Clock,
        witness: Witness,
        identify: Callable[[str, JSONObject], Hashable],
        new_task_id: Callable[[], str],
    ) -> None:
        self.notifies: Notifies | None = None
        self.on_request: Callable[[Arrival], Fault | None] | None = None
        self.clock = clock
        self._faults: dict[str, deque[Fault | None]] = {}
        self._streams: set[Stream] = set()
        self._witness = witness
        self._identify = identify
        self._new_task_id = new_task_id
        self._tools: dict[str, _Tool] = {}
        self._tasks: dict[str, Timeline] = {}
        self._rounds: dict[str, _Round] = {}
        self._states = itertools.count(1)

    def add_tool(self, listed: Tool, plan: Plan, traits: Traits) -> None:
        """Add a tool, in place of an earlier one of that name.

        Raises:
            ValueError: The steps cannot be taken, or an ``x-mcp-header`` mark is not allowed.
        """
        plan = plan if callable(plan) else check_steps(plan)
        self._tools[listed.name] = _Tool(listed, plan, header_map(listed.input_schema), traits)

    def listed_tool(self, name: str) -> Tool | None:
        """A tool as it is listed; ``None`` if there is none of that name."""
        tool = self._tools.get(name)
        return tool.listed if tool is not None else None

    def queue_faults(self, method: str, faults: Iterable[Fault | None]) -> None:
        """Have the next requests of a method go wrong, before those that ``on_request`` picks."""
        self._faults.setdefault(method, deque()).extend(faults)

    def receive(self, method: str, params: JSONObject, headers: Mapping[str, str] | None = None) -> Exchange:
        """Log a request, pick its fault, and carry it out unless the fault prevents that.

        Args:
            method: JSON-RPC method.
            params: Its params.
            headers: By lower-case name; ``None`` in memory, where there are none.
        """
        arrival = Arrival(method=method, params=params, at=self.clock.monotonic(), headers=headers)
        arrival.fault = fault = self._pick_fault(arrival)
        self._witness.note_arrival(arrival)
        reply: WireReply | Stream = {}
        unheeded = isinstance(fault, Unheeded) and method in ("tasks/update", "tasks/cancel")
        if unheeded:
            reply = _DONE
        elif fault is None or fault.acted:
            try:
                reply = self._act(arrival)
            except RefusedError as refused:
                reply = refused.reply
        match fault:
            case LostRequest() | LostReply() | Unreachable() | HttpError() | ErrorReply() | Garbled():
                reply = fault
            case Stale(back) if method == "tasks/get" and isinstance(reply, dict):
                reply = self._repeat_earlier(params["taskId"], back)
            case _:
                pass
        return Exchange(arrival=arrival, reply=reply, after_s=delay_s(fault))

    def note_reply(self, exchange: Exchange) -> None:
        """Note that the reply of an exchange leaves now, and will arrive."""
        reply = {} if isinstance(exchange.reply, Stream) else exchange.reply
        self._witness.note_reply(exchange.arrival, reply, self.clock.monotonic())

    def _pick_fault(self, arrival: Arrival) -> Fault | None:
        queued = self._faults.get(arrival.method)
        if queued:
            return queued.popleft()
        return self.on_request(arrival) if self.on_request is not None else None

    def _act(self, arrival: Arrival) -> JSONObject | Stream:
        if arrival.headers is not None:
            self._check_headers(arrival)
        match arrival.method:
            case "tools/call":
                return self._call(arrival)
            case "tasks/get":
                return _DONE | self._task(arrival).snapshot(arrival.at)
            case "tasks/update":
                return self._update(arrival)
            case "tasks/cancel":
                self._task(arrival).cancel(arrival.at)
                self._wake_streams()
                return _DONE
            case method if method == LISTEN and self.notifies is not None:
                return self._listen(arrival, self.notifies)
            case "server/discover":
                capabilities: JSONObject = {"tools": {}, "extensions": {EXTENSION_ID: {}}}
                return _cacheable(supportedVersions=[PROTOCOL_VERSION], capabilities=capabilities)
            case "tools/list":
                tools = [tool.listed for tool in self._tools.values()]
                return _cacheable(tools=[one.model_dump(by_alias=True, exclude_none=True) for one in tools])
            case method:
                raise RefusedError(METHOD_NOT_FOUND, f"Unknown method: {method}", http_status=404)

    def _repeat_earlier(self, task_id: str, back: int) -> JSONObject:
        """The snapshot of ``back`` replies ago, in place of the one that was just made."""
        sent = self._tasks[task_id].sent
        sent.pop()
        sent.append(sent[max(0, len(sent) - back)])
        return _DONE | sent[-1]

    def _check_headers(self, arrival: Arrival) -> None:
        tool = self._tools.get(arrival.tool or "")
        missing = find_missing(arrival, tool.headers if tool is not None else {})
        self._witness.missing_headers += missing
        refuse_missing(missing, (arrival.headers or {}).get("mcp-protocol-version"))

    # ── tools/call ────────────────────────────────────────────────────────────────────────────

    def _call(self, arrival: Arrival) -> JSONObject:
        params = arrival.params
        name, arguments, state = arrival.tool, params.get("arguments") or {}, params.get("requestState")
        tool = self._tools.get(name or "")
        if name is None or tool is None:
            raise RefusedError(INVALID_PARAMS, f"Unknown tool: {name}")
        if state is None:
            steps = check_steps(tool.plan(arguments)) if callable(tool.plan) else tool.plan
            this = _Round(name, arguments, steps)
        else:
            this = self._next_round(state, name, arguments, _answers(params))
        match this.steps[this.index]:
            case AskFirst(requests):
                state = f"round-{next(self._states)}"
                self._rounds[state] = this
                asked = {"inputRequests": dict(requests)} if requests else {}
                return {"resultType": "input_required", **asked, "requestState": state}
            case Reply(result):
                self._count_run(name, arguments)
                return make_result(result, this.answers)
            case _:
                return self._create(arrival, tool, this)

    def _next_round(self, state: str, name: str, arguments: JSONObject, answers: Answers) -> _Round:
        before = self._rounds.get(state)
        if before is None or (before.tool, before.arguments) != (name, arguments):
            raise RefusedError(INVALID_PARAMS, "not the requestState of a call with these arguments")
        asked = before.steps[before.index]
        assert isinstance(asked, AskFirst), "only calls that ask first have a requestState"
        if answers.keys() != asked.requests.keys():
            raise RefusedError(INVALID_PARAMS, "inputResponses must answer what was asked, and nothing else")
        check_answers(asked.requests, answers)
        self._witness.questions_answered.update((state, key) for key in answers)
        return replace(before, index=before.index + 1, answers={**before.answers, **answers})

    def _create(self, arrival: Arrival, tool: _Tool, last: _Round) -> JSONObject:
        if arrival.headers is not None:
            refuse_without_capability(arrival.params)
        task = Timeline(
            task_id=self._new_task_id(),
            steps=last.steps[last.index :],
            created_at=arrival.at,
            epoch=self.clock.time() - arrival.at,
            traits=tool.traits,
            answers=dict(last.answers),
        )
        self._tasks[task.task_id] = task
        self._witness.created[task.task_id] = self._count_run(last.tool, last.arguments)
        task.catch_up(arrival.at)
        return {"resultType": "task", **task.snapshot(arrival.at, created=True)}

    def _count_run(self, name: str, arguments: JSONObject) -> Hashable:
        intent = self._identify(name, arguments)
        self._witness.calls[intent] += 1
        return intent

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────

    def _task(self, arrival: Arrival) -> Timeline:
        if arrival.headers is not None:
            refuse_without_capability(arrival.params)
        task = self._tasks.get(arrival.task_id or "")
        if task is None:
            raise RefusedError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
        if task.states and arrival.params.get("requestState") not in task.states:
            self._witness.lost_states.append(task.task_id)
            raise RefusedError(INVALID_PARAMS, "Failed to retrieve task: requestState is missing or unknown")
        task.catch_up(arrival.at)
        return task

    def _update(self, arrival: Arrival) -> JSONObject:
        task, answers = self._task(arrival), _answers(arrival.params)
        self._witness.unasked.update((task.task_id, key) for key in answers.keys() - task.asked)
        task.answer(arrival.at, answers)
        self._witness.questions_answered.update(
            (task.task_id, key) for key in answers.keys() & task.answers.keys()
        )
        self._wake_streams()
        return _DONE

    def _listen(self, arrival: Arrival, notifies: Notifies) -> Stream:
        if arrival.headers is not None:
            refuse_without_capability(arrival.params)
        task_ids = _task_ids(arrival.params)
        tasks: dict[str, Timeline] = {}
        for task_id in task_ids:
            with suppress(KeyError, RefusedError):
                self._tasks[task_id].catch_up(arrival.at)
                tasks[task_id] = self._tasks[task_id]
        return Stream(notifies, task_ids, tasks, self.clock, self._witness, self._streams)

    def _wake_streams(self) -> None:
        for stream in self._streams:
            stream.wake()


def identify_by_arguments(tool: str, arguments: JSONObject) -> Hashable:
    """A tool's name, and its arguments as JSON with sorted keys."""
    return tool, json.dumps(arguments, sort_keys=True, separators=(",", ":"))


def _answers(params: JSONObject) -> Answers:
    answers = params.get("inputResponses", {})
    if not isinstance(answers, Mapping):
        raise RefusedError(INVALID_PARAMS, "inputResponses must be an object")
    return answers


def _task_ids(params: JSONObject) -> list[str]:
    wanted = params.get("notifications")
    task_ids = wanted.get("taskIds", []) if isinstance(wanted, Mapping) else None
    if not isinstance(task_ids, list) or not all(isinstance(one, str) for one in task_ids):
        raise RefusedError(
            INVALID_PARAMS, "notifications must be an object, and its taskIds a list of strings"
        )
    return task_ids


def _cacheable(**result: Any) -> JSONObject:
    return {**_DONE, "ttlMs": 0, "cacheScope": "private", **result}
