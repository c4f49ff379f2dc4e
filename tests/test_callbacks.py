"""The server's questions and the host's callbacks: what is asked, what is checked, what is sent.

The rule behind all of it is the specification's ("Clients and hosts MUST treat each input request
as the equivalent standalone request"); the checks and the messages are ours.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    RequestParams,
    Root,
    TextContent,
    ToolUseContent,
)

from mcp_tasks_client import InputContext, Task
from mcp_tasks_client.aio.host_code import was_cancelled_from_inside
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.protocol.replies import RpcError
from mcp_tasks_client.questions.answers import note_pattern
from mcp_tasks_client.questions.callbacks import Callbacks, NoAnswerError

from ._requirements import requirement

pytestmark = pytest.mark.anyio

TASK_ID = "hfWcnM9nILV_1MI9AytuHXEJLNNwF6lE8HXmpazeV2c"
KEY = f"{TASK_ID}:0602359d90eb0aaa"
CONTEXT = InputContext(tool="deploy", key=KEY, task=Task(task_id=TASK_ID, status="input_required"))

COUNT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
YES = ElicitResult(action="accept", content={"n": 3})
SENT_YES = {"action": "accept", "content": {"n": 3}}

URL = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Sign in", "url": "https://a.example/x", "elicitationId": "e1"},
}
SAMPLING = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "hi", "x-inner": [1]}}],
        "maxTokens": 5,
        "x-new": {"a": None},
    },
}
ROOTS = {"method": "roots/list"}

SAID = CreateMessageResult(role="assistant", content=TextContent(type="text", text="hello"), model="m")
NO_ROOTS = ListRootsResult(roots=[])

LIMIT_S = 30.0
LONG_S = 60.0
"""Seconds that a callback waits at most: longer than anybody here waits for it."""


def form(schema: Any = COUNT, **params: Any) -> JSONObject:
    return {
        "method": "elicitation/create",
        "params": {"message": "How many?", "requestedSchema": schema, **params},
    }


async def answer(request: JSONObject, **callbacks: Any) -> JSONObject:
    with anyio.fail_after(LIMIT_S):
        return await Callbacks(**callbacks).answer(CONTEXT, request)


async def refusal(request: JSONObject, **callbacks: Any) -> NoAnswerError:
    with pytest.raises(NoAnswerError) as caught:
        await answer(request, **callbacks)
    return caught.value


class Recorder:
    """A callback that keeps what it was asked."""

    def __init__(self, result: object) -> None:
        self.result = result
        self.asked: list[tuple[Any, Any]] = []

    async def ask(self, context: Any, params: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        self.asked.append((context, params))
        return self.result

    @property
    def params(self) -> Any:
        ((_, params),) = self.asked
        return params


# ── every kind of request ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", [{}, {"mode": "form"}], ids=["without mode", "mode form"])
async def test_a_form_reaches_the_callback_as_form_params_with_or_without_its_mode(
    mode: dict[str, str],
) -> None:
    asked = Recorder(YES)
    assert await answer(form(**mode), elicitation=asked.ask) == SENT_YES
    assert type(asked.params) is ElicitRequestFormParams
    assert (asked.params.message, asked.params.requested_schema) == ("How many?", COUNT)


async def test_a_url_reaches_the_callback_as_url_params_and_is_sent_back_without_content() -> None:
    asked = Recorder(YES)
    assert await answer(URL, elicitation=asked.ask) == {"action": "accept"}
    assert type(asked.params) is ElicitRequestURLParams
    assert (asked.params.url, asked.params.elicitation_id) == ("https://a.example/x", "e1")


async def test_sampling_reaches_its_callback_and_the_message_is_sent() -> None:
    asked = Recorder(SAID)
    sent = {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}
    assert await answer(SAMPLING, sampling=asked.ask) == sent
    assert type(asked.params) is CreateMessageRequestParams


async def test_sampling_may_be_answered_with_tool_use_whose_null_arguments_survive() -> None:
    use = ToolUseContent(type="tool_use", id="u1", name="search", input={"q": None})
    result = CreateMessageResultWithTools(role="assistant", content=[use], model="m", stop_reason="toolUse")
    assert await answer(SAMPLING, sampling=lambda c, p: result) == {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "u1", "name": "search", "input": {"q": None}}],
        "model": "m",
        "stopReason": "toolUse",
    }


async def test_roots_are_asked_for_in_the_sdks_shape_with_the_context_alone() -> None:
    asked: list[InputContext] = []

    def roots(context: InputContext) -> ListRootsResult:
        asked.append(context)
        return ListRootsResult(roots=[Root(uri="file:///srv/a b", name="a")])  # type: ignore[arg-type]  # pydantic reads the URL

    assert await answer(ROOTS, roots=roots) == {"roots": [{"uri": "file:///srv/a%20b", "name": "a"}]}
    assert asked == [CONTEXT]


async def test_roots_may_take_the_params_as_well_which_are_none_if_the_server_sent_none() -> None:
    asked = Recorder(NO_ROOTS)
    assert await answer(ROOTS, roots=asked.ask) == {"roots": []}
    assert asked.params is None
    asked = Recorder(NO_ROOTS)
    await answer({**ROOTS, "params": {"x-new": 1}}, roots=asked.ask)
    assert type(asked.params) is RequestParams
    assert asked.params.model_extra == {"x-new": 1}


def an_async_roots_callback_of_the_sdk() -> Callable[..., Any]:
    async def roots(context: InputContext) -> ListRootsResult:
        await anyio.lowlevel.checkpoint()
        return NO_ROOTS

    return roots


def a_callable_object_for_roots() -> Callable[..., Any]:
    class Roots:
        async def __call__(self, context: InputContext) -> ListRootsResult:
            await anyio.lowlevel.checkpoint()
            return NO_ROOTS

    return Roots()


@pytest.mark.parametrize("make", [an_async_roots_callback_of_the_sdk, a_callable_object_for_roots])
async def test_an_async_roots_callback_may_take_the_context_alone(make: Callable[[], Any]) -> None:
    """The SDK's own shape, on both loops."""
    assert await answer(ROOTS, roots=make()) == {"roots": []}


async def test_a_roots_callback_that_does_not_tell_its_signature_gets_the_context_alone() -> None:
    class Context:
        """Hashable, as a key of a mapping has to be."""

    built_in = {(context := Context()): NO_ROOTS}.__getitem__
    with anyio.fail_after(LIMIT_S):
        assert await Callbacks(roots=built_in).answer(context, ROOTS) == {"roots": []}  # type: ignore[arg-type]  # any object will do


async def test_fields_that_we_do_not_name_stay_in_the_params_at_every_level() -> None:
    asked = Recorder(SAID)
    await answer(SAMPLING, sampling=asked.ask)
    assert asked.params.model_extra == {"x-new": {"a": None}}
    assert asked.params.messages[0].content.model_extra == {"x-inner": [1]}
    asked = Recorder(YES)
    await answer(form(**{"x-new": 1}), elicitation=asked.ask)
    assert asked.params.model_extra == {"x-new": 1}
    asked = Recorder(ElicitResult(action="decline"))
    await answer({**URL, "params": {**URL["params"], "x-new": 1}}, elicitation=asked.ask)  # type: ignore[dict-item]  # a literal of mixed values
    assert asked.params.model_extra == {"x-new": 1}


# ── every kind of callback ────────────────────────────────────────────────────────────────────


async def say_yes(context: InputContext, params: Any) -> ElicitResult:
    await anyio.lowlevel.checkpoint()
    return YES


def say_yes_at_once(context: InputContext, params: Any) -> ElicitResult:
    return YES


async def say(result: ElicitResult, context: InputContext, params: Any) -> ElicitResult:
    await anyio.lowlevel.checkpoint()
    return result


class Object:
    def __call__(self, context: InputContext, params: Any) -> ElicitResult:
        return YES

    async def method(self, context: InputContext, params: Any) -> ElicitResult:
        await anyio.lowlevel.checkpoint()
        return YES


class AsyncObject:
    async def __call__(self, context: InputContext, params: Any) -> ElicitResult:
        await anyio.lowlevel.checkpoint()
        return YES


class Awaitable:
    """Awaitable, and no coroutine."""

    def __await__(self) -> Any:
        return say_yes(CONTEXT, None).__await__()


@pytest.mark.parametrize(
    "callback",
    [
        say_yes,
        say_yes_at_once,
        functools.partial(say, YES),
        functools.partial(say_yes_at_once),
        functools.partial(functools.partial(say, YES)),
        Object(),
        Object().method,
        AsyncObject(),
        AsyncObject().__call__,
        lambda context, params: YES,
        lambda context, params: Awaitable(),
    ],
    ids=[
        "coroutine function",
        "plain function",
        "partial of a coroutine function",
        "partial of a plain function",
        "partial of a partial",
        "callable object",
        "bound coroutine method",
        "object with an async __call__",
        "bound async __call__",
        "plain lambda",
        "lambda that returns an awaitable",
    ],
)
async def test_a_callback_may_be_any_kind_of_callable(callback: Any) -> None:
    assert await answer(form(), elicitation=callback) == SENT_YES


@pytest.mark.parametrize(
    "callback",
    [lambda context, params: say_yes(context, params), functools.partial(AsyncObject())],
    ids=["lambda", "partial of an object with an async __call__"],
)
async def test_a_plain_callable_may_return_a_coroutine(callback: Any) -> None:
    assert await answer(form(), elicitation=callback) == SENT_YES


async def test_a_plain_function_may_block_in_a_thread_of_its_own_while_the_loop_goes_on() -> None:
    """It could never say yes if it ran in the loop: what it waits for is done there meanwhile."""
    asked, typed = threading.Event(), threading.Event()
    ran_in: list[int] = []

    def read_the_keyboard(context: InputContext, params: Any) -> ElicitResult:
        ran_in.append(threading.get_ident())
        asked.set()
        return YES if typed.wait(LONG_S) else ElicitResult(action="cancel")

    async def somebody_types() -> None:
        await anyio.to_thread.run_sync(asked.wait, LIMIT_S)
        typed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(somebody_types)
        assert await answer(form(), elicitation=read_the_keyboard) == SENT_YES
    assert ran_in != [threading.get_ident()]


@pytest.mark.parametrize(
    "callback",
    [say_yes, functools.partial(say, YES), Object().method, AsyncObject()],
    ids=["function", "partial", "bound method", "object with an async __call__"],
)
async def test_a_coroutine_function_needs_no_thread(callback: Any) -> None:
    """Shown by leaving none to be had."""
    ran_in: list[object] = []

    async def ask(context: InputContext, params: Any) -> Any:
        ran_in.extend([threading.get_ident(), anyio.get_current_task()])
        return await callback(context, params)

    limiter = anyio.to_thread.current_default_thread_limiter()
    others = [object() for _ in range(int(limiter.available_tokens))]
    for other in others:
        limiter.acquire_on_behalf_of_nowait(other)
    try:
        assert await answer(form(), elicitation=callback) == SENT_YES
        assert await answer(form(), elicitation=ask) == SENT_YES
    finally:
        for other in others:
            limiter.release_on_behalf_of(other)
    assert ran_in == [threading.get_ident(), anyio.get_current_task()]


async def test_a_plain_function_that_nobody_waits_for_any_more_is_left_to_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started, released, ended = threading.Event(), threading.Event(), threading.Event()

    def read_the_keyboard(context: InputContext, params: Any) -> ElicitResult:
        started.set()
        released.wait(LONG_S)
        ended.set()
        return YES

    answers: list[JSONObject] = []

    async def ask() -> None:
        answers.append(await Callbacks(elicitation=read_the_keyboard).answer(CONTEXT, form()))

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.to_thread.run_sync(started.wait, LIMIT_S)
            tasks.cancel_scope.cancel()
    assert not ended.is_set(), "the wait was over before the function was"
    released.set()
    assert ended.wait(LIMIT_S)
    assert answers == []
    assert "The elicitation callback has not returned yet" in caplog.text


async def test_what_a_plain_function_makes_that_nobody_waits_for_any_more_is_closed() -> None:
    """It may be a coroutine, of which it would be said that it was never awaited."""
    started, released, made = threading.Event(), threading.Event(), list[Any]()

    async def answer() -> ElicitResult:
        raise AssertionError

    def ask(context: InputContext, params: Any) -> Any:
        made.append(answer())
        started.set()
        released.wait(LONG_S)
        return made[0]

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Callbacks(elicitation=ask).answer, CONTEXT, form())
            await anyio.to_thread.run_sync(started.wait, LIMIT_S)
            tasks.cancel_scope.cancel()
        released.set()
        while inspect.getcoroutinestate(made[0]) != inspect.CORO_CLOSED:
            await anyio.sleep(0.01)


async def test_what_a_plain_function_has_made_when_its_caller_is_stopped_is_closed() -> None:
    made, started, released = list[Any](), threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    async def answer() -> ElicitResult:
        raise AssertionError

    def ask(context: InputContext, params: Any) -> Any:
        made.append(answer())
        threads.append(threading.current_thread())
        started.set()
        released.wait(LONG_S)
        return made[0]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Callbacks(elicitation=ask).answer, CONTEXT, form())
        await anyio.to_thread.run_sync(started.wait, LIMIT_S)
        tasks.cancel_scope.cancel()
        released.set()
        threads[0].join(LIMIT_S)  # holds the event loop, so that the caller learns of both at once
    assert inspect.getcoroutinestate(made[0]) == inspect.CORO_CLOSED


async def test_a_coroutine_function_is_cancelled_with_whoever_waits_for_it() -> None:
    started, ended = anyio.Event(), anyio.Event()

    async def ask(context: InputContext, params: Any) -> Any:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Callbacks(elicitation=ask).answer, CONTEXT, form())
            await started.wait()
            tasks.cancel_scope.cancel()
    assert ended.is_set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("inside_a_scope", [False, True])
async def test_a_callback_whose_own_task_was_cancelled_is_no_end_of_whoever_waits_for_it(
    inside_a_scope: bool,
) -> None:
    async def ask(context: InputContext, params: Any) -> Any:
        own = asyncio.ensure_future(asyncio.sleep(60))
        own.cancel()
        await own

    with anyio.move_on_after(60 if inside_a_scope else None):
        error = await refusal(form(), elicitation=ask)
    assert str(error) == "the elicitation callback was cancelled; answer, or return ErrorData"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_native_cancellation_of_whoever_waits_is_passed_on() -> None:
    async def ask(context: InputContext, params: Any) -> Any:
        waiting.cancel()
        await asyncio.sleep(60)

    waiting = asyncio.ensure_future(Callbacks(elicitation=ask).answer(CONTEXT, form()))
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_outside_of_any_task_a_cancellation_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyio, "current_effective_deadline", lambda: math.inf)
    assert was_cancelled_from_inside()


@pytest.mark.parametrize("task", [None, Task(task_id=TASK_ID, status="input_required")])
async def test_the_context_names_tool_task_and_key(task: Task | None) -> None:
    asked = Recorder(YES)
    given = InputContext(tool="deploy", key=KEY, task=task)
    await Callbacks(elicitation=asked.ask).answer(given, form())
    ((context, _),) = asked.asked
    assert (context.tool, context.key, context.task) == ("deploy", KEY, task)


async def test_the_context_in_a_log_shows_neither_the_key_nor_the_whole_task_id() -> None:
    """Servers put the task ID into the key."""
    assert TASK_ID not in repr(CONTEXT)
    assert "deploy" in repr(CONTEXT)


# ── forms are checked before they go ──────────────────────────────────────────────────────────

NAMED = {
    "type": "object",
    "properties": {
        "size": {"type": "string", "enum": ["s", "m"]},
        "n": {"$ref": "#/$defs/count"},
        "mail": {"type": "string", "pattern": "^[^@]+@[^@]+$"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 1},
    },
    "required": ["size"],
    "additionalProperties": False,
    "$defs": {"count": {"type": "integer", "minimum": 1}},
}


@pytest.mark.parametrize(
    "content",
    [
        {"size": "s"},
        {"size": "m", "n": 1, "mail": "a@b", "tags": ["x"]},
    ],
)
async def test_an_accepted_form_that_matches_is_sent_as_the_callback_gave_it(content: dict[str, Any]) -> None:
    result = ElicitResult(action="accept", content=content)
    assert await answer(form(NAMED), elicitation=lambda c, p: result) == {
        "action": "accept",
        "content": content,
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({}, '$: "size" is a required property'),
        (None, '$: "size" is a required property'),
        ({"size": 3}, '$.size: the value is not of type "string"'),
        ({"size": "xl"}, '$.size: the value is not one of "s" or "m"'),
        ({"size": "s", "n": "3"}, '$.n: the value is not of type "integer"'),
        ({"size": "s", "n": 0}, "$.n: the value is less than the minimum of 1"),
        ({"size": "s", "mail": "hunter2"}, "$.mail: the value does not match the pattern"),
        ({"size": "s", "tags": ["a", "b"]}, "$.tags: the value has more than 1 item"),
        ({"size": "s", "hunter2": 1}, "$: the value has members that additionalProperties does not allow"),
    ],
)
async def test_an_accepted_form_that_does_not_match_is_never_sent_and_the_message_says_where(
    content: dict[str, Any] | None, problem: str
) -> None:
    result = ElicitResult(action="accept", content=content)
    error = await refusal(form(NAMED), elicitation=lambda c, p: result)
    assert "the elicitation callback accepted with content that does not match the requestedSchema" in str(
        error
    )
    assert problem in str(error)
    assert str(error).endswith("validate before you accept")
    assert "hunter2" not in str(error), "an answer of a person is never quoted"


@pytest.mark.parametrize("pattern", [r"^[\w-.]+$", "^a{,3}$"])
async def test_a_form_whose_pattern_only_the_server_can_read_can_be_accepted(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    note_pattern.cache_clear()
    schema = {**NAMED, "properties": {**NAMED["properties"], "nick": {"type": "string", "pattern": pattern}}}
    result = ElicitResult(action="accept", content={"size": "s", "nick": "ada"})
    for _ in range(2):
        sent = await answer(form(schema), elicitation=lambda c, p: result)
        assert sent == {"action": "accept", "content": {"size": "s", "nick": "ada"}}
    (told,) = caplog.messages
    assert pattern in told
    assert "the server checks it" in told
    refused = await refusal(
        form(schema), elicitation=lambda c, p: ElicitResult(action="accept", content={"nick": "a"})
    )
    assert '"size" is a required property' in str(refused)


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (None, {"size": "m"}),
        ({}, {"size": "m"}),
        ({"size": "s"}, {"size": "s"}),
        ({"n": 2}, {"size": "m", "n": 2}),
    ],
)
async def test_a_required_field_that_is_left_out_has_the_default_of_the_form(
    content: dict[str, Any] | None, sent: JSONObject
) -> None:
    fields = {"size": {"type": "string", "default": "m"}, "n": {"type": "integer", "default": 1}}
    asked = form({"type": "object", "properties": fields, "required": ["size"]})
    accepted = ElicitResult(action="accept", content=content)
    assert await answer(asked, elicitation=lambda c, p: accepted) == {"action": "accept", "content": sent}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"size": {"type": "string", "default": 7}}, "required": ["size"]},
        {"type": "object", "properties": {"size": True}, "required": ["size"]},
        {"type": "object", "required": ["size"]},
    ],
)
async def test_a_default_that_does_not_fit_or_is_not_there_fills_nothing(schema: JSONObject) -> None:
    accepted = ElicitResult(action="accept", content={})
    assert "requestedSchema" in str(await refusal(form(schema), elicitation=lambda c, p: accepted))


async def test_accepting_without_content_sends_an_empty_form_where_that_is_allowed() -> None:
    accepted = ElicitResult(action="accept")
    sent = await answer(form({"type": "object", "properties": {}}), elicitation=lambda c, p: accepted)
    assert sent == {"action": "accept", "content": {}}


async def test_null_values_inside_accepted_content_are_sent() -> None:
    schema = {"type": "object", "properties": {"nickname": {"type": ["string", "null"]}}}
    result = ElicitResult(action="accept", content={"nickname": None})
    sent = await answer(form(schema), elicitation=lambda c, p: result)
    assert sent == {"action": "accept", "content": {"nickname": None}}


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("request_", [form(), URL], ids=["form", "url"])
async def test_declining_and_cancelling_send_no_content_and_check_none(
    action: Any, request_: JSONObject
) -> None:
    result = ElicitResult(action=action, content={"n": "half typed"})
    assert await answer(request_, elicitation=lambda c, p: result) == {"action": action}


async def test_what_the_callback_returned_is_left_as_it_was() -> None:
    """Hosts may return one and the same object again."""
    declined = ElicitResult(action="decline", content={"n": 1})
    await answer(form(), elicitation=lambda c, p: declined)
    assert declined.content == {"n": 1}
    accepted = ElicitResult(action="accept")
    await answer(form({"type": "object"}), elicitation=lambda c, p: accepted)
    assert accepted.content is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"type": "object", "patternProperties": {"(": {}}},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/$defs/absent"},
        {"$ref": "#"},
        {"$schema": 3},
        {"title": "a text, not a schema", "$ref": "#/title"},
        {"allOf": [{"title": str(n)} for n in range(2000)]},
    ],
    ids=[
        "unknown type",
        "pattern that does not compile",
        "reference to a URL",
        "reference to a file",
        "reference to nothing",
        "reference to itself",
        "$schema that is no text",
        "reference to what is no schema",
        "too large to be checked",
    ],
)
async def test_a_schema_that_cannot_be_used_leaves_the_question_open_and_nobody_is_asked(
    schema: JSONObject,
) -> None:
    asked = Recorder(YES)
    error = await refusal(form(schema), elicitation=asked.ask)
    assert str(error).startswith("the server's requestedSchema cannot be used: ")
    assert asked.asked == []


async def test_a_form_with_a_choice_of_all_countries_is_within_the_bound() -> None:
    countries = [{"const": str(n), "title": f"Country {n}"} for n in range(250)]
    schema = {"type": "object", "properties": {name: {"oneOf": countries} for name in ("from", "to")}}
    chosen = ElicitResult(action="accept", content={"from": "1", "to": "249"})
    assert (await answer(form(schema), elicitation=lambda c, p: chosen))["content"] == chosen.content


# ── answers that are none ─────────────────────────────────────────────────────────────────────


@requirement("input:trust", "law:10")
@pytest.mark.parametrize(
    ("request_", "name"),
    [(form(), "elicitation"), (URL, "elicitation"), (SAMPLING, "sampling"), (ROOTS, "roots")],
    ids=["form", "url", "sampling", "roots"],
)
@pytest.mark.parametrize("others", [False, True], ids=["no callbacks", "other callbacks"])
async def test_nothing_is_answered_by_default_and_the_message_names_the_missing_callback(
    request_: JSONObject, name: str, others: bool
) -> None:
    callbacks = {"elicitation": say_yes, "sampling": Recorder(SAID).ask, "roots": Recorder(NO_ROOTS).ask}
    del callbacks[name]
    error = await refusal(request_, **(callbacks if others else {}))
    assert (
        str(error)
        == f"there is no {name} callback; answer by error.questions, or pass {name}=... to the client "
        "and resume the task"
    )


@pytest.mark.parametrize(
    ("request_", "name", "wanted"),
    [
        (form(), "elicitation", "ElicitResult"),
        (URL, "elicitation", "ElicitResult"),
        (SAMPLING, "sampling", "CreateMessageResult or CreateMessageResultWithTools"),
        (ROOTS, "roots", "ListRootsResult"),
    ],
    ids=["form", "url", "sampling", "roots"],
)
@pytest.mark.parametrize(
    "returned",
    [{"action": "accept"}, "yes", True, RequestParams(), ElicitResult],
    ids=["dict", "str", "bool", "another model", "the class itself"],
)
async def test_a_wrong_return_type_is_named_together_with_the_right_one(
    request_: JSONObject, name: str, wanted: str, returned: object
) -> None:
    error = await refusal(request_, **{name: lambda context, params: returned})
    assert (
        str(error) == f"the {name} callback returned {type(returned).__name__}; "
        f"return mcp_types.{wanted} or ErrorData, or None to leave the question to others"
    )


@pytest.mark.parametrize(
    ("request_", "name", "returned"),
    [(form(), "elicitation", SAID), (SAMPLING, "sampling", YES), (ROOTS, "roots", YES)],
    ids=["elicitation", "sampling", "roots"],
)
async def test_the_answer_to_another_kind_of_question_is_a_wrong_type(
    request_: JSONObject, name: str, returned: object
) -> None:
    error = await refusal(request_, **{name: Recorder(returned).ask})
    assert f"returned {type(returned).__name__}" in str(error)


@pytest.mark.parametrize(
    ("request_", "name"),
    [(form(), "elicitation"), (URL, "elicitation"), (SAMPLING, "sampling"), (ROOTS, "roots")],
    ids=["form", "url", "sampling", "roots"],
)
async def test_error_data_is_a_refusal_with_its_code_and_message(request_: JSONObject, name: str) -> None:
    refused = ErrorData(code=-32001, message="not during dinner")
    error = await refusal(request_, **{name: lambda context, params: refused})
    assert str(error) == f"the {name} callback refused with error -32001: not during dinner"


@pytest.mark.parametrize(
    ("data", "said"), [({"why": 1}, {"why": 1}), ({1, 2}, [1, 2]), (math.nan, None), (object(), None)]
)
async def test_a_refusal_is_said_though_not_all_of_it_has_a_json_form(
    data: Any, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ErrorData(code=-1, message="no", data=data)
    error = await refusal(form(), elicitation=lambda context, params: refused)
    assert error.refusal == RpcError(-1, "no", said)
    assert ("has no JSON form" in caplog.text) == (type(data) is object)


class BoomError(Exception):
    pass


def raise_boom(context: Any, params: Any) -> Any:
    raise BoomError("no terminal")


async def raise_boom_later(context: Any, params: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    raise BoomError("no terminal")


@pytest.mark.parametrize("callback", [raise_boom, raise_boom_later])
@pytest.mark.parametrize(
    ("request_", "name"),
    [(form(), "elicitation"), (URL, "elicitation"), (SAMPLING, "sampling"), (ROOTS, "roots")],
    ids=["form", "url", "sampling", "roots"],
)
async def test_what_a_callback_raises_is_told_and_kept_as_the_cause(
    request_: JSONObject, name: str, callback: Any
) -> None:
    error = await refusal(request_, **{name: callback})
    assert str(error) == f"the {name} callback raised BoomError: no terminal"
    assert isinstance(error.__cause__, BoomError)


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def raise_mute(context: Any, params: Any) -> Any:
    raise MuteError


async def test_an_exception_of_a_callback_that_has_no_text_is_told_by_its_name() -> None:
    error = await refusal(form(), elicitation=raise_mute)
    assert str(error) == "the elicitation callback raised MuteError: its text cannot be read"
    assert isinstance(error.__cause__, MuteError)


async def test_a_callback_that_takes_no_arguments_is_told_so_by_pythons_own_words() -> None:
    error = await refusal(form(), elicitation=lambda: YES)
    assert "the elicitation callback raised TypeError" in str(error)
    assert "positional argument" in str(error)


@pytest.mark.parametrize(
    "result",
    [
        ElicitResult(action="decline", _meta={"trace": object()}),
        ElicitResult.model_construct(action="accept", content={"n": 3, "made_at": object()}),
    ],
    ids=["in _meta", "in content"],
)
async def test_an_answer_that_has_no_json_form_is_no_answer(result: ElicitResult) -> None:
    error = await refusal(form(), elicitation=lambda c, p: result)
    assert "elicitation callback" in str(error)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_a_number_that_json_does_not_have_is_no_answer(number: float) -> None:
    result = ElicitResult(action="accept", content={"n": number})
    await refusal(form({"type": "object"}), elicitation=lambda c, p: result)


# ── requests that are none ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"method": None},
        {"method": 3},
        {"method": ["elicitation/create"]},
        {"method": "tools/call", "params": {}},
        {"method": "ELICITATION/CREATE", "params": form()["params"]},
    ],
)
async def test_an_unknown_method_is_asked_of_nobody(request_: JSONObject) -> None:
    asked = Recorder(YES)
    error = await refusal(request_, elicitation=asked.ask, sampling=asked.ask, roots=asked.ask)
    assert str(error) == f"the server asked {request_.get('method')!r}, which no client can answer"
    assert asked.asked == []


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        ({"method": "elicitation/create"}, "params"),
        ({"method": "elicitation/create", "params": None}, "params"),
        ({"method": "elicitation/create", "params": "How many?"}, "params"),
        ({"method": "elicitation/create", "params": []}, "params"),
        (form("object"), "requestedSchema"),
        (form(None), "requestedSchema"),
        (form(message=None), "message"),
        (form(mode=None), "mode"),
        (form(mode="video"), "mode"),
        ({"method": "elicitation/create", "params": {"mode": "url", "message": "m"}}, "url"),
        ({"method": "sampling/createMessage"}, "params"),
        ({"method": "sampling/createMessage", "params": 3}, "params"),
        ({"method": "sampling/createMessage", "params": {"messages": []}}, "maxTokens"),
        (
            {
                "method": "sampling/createMessage",
                "params": {"messages": [{"role": "robot", "content": []}], "maxTokens": 1},
            },
            "messages.0.role",
        ),
        ({"method": "roots/list", "params": "all"}, "params"),
        ({"method": "roots/list", "params": {"_meta": "x"}}, "_meta"),
    ],
)
async def test_a_malformed_request_is_asked_of_nobody_and_the_message_says_where(
    request_: JSONObject, where: str
) -> None:
    asked = Recorder(YES)
    error = await refusal(request_, elicitation=asked.ask, sampling=asked.ask, roots=asked.ask)
    assert str(error).startswith(f"the server's request is malformed, {where}: ")
    assert asked.asked == []


async def test_a_malformed_request_is_not_quoted() -> None:
    """It may hold what only a person should see."""
    secret = {"method": "elicitation/create", "params": {"message": {"s3cret": 1}, "requestedSchema": {}}}
    error = await refusal(secret, elicitation=say_yes)
    assert "s3cret" not in str(error)
    assert error.__cause__ is None


# ── what is declared ──────────────────────────────────────────────────────────────────────────


async def test_capabilities_are_declared_only_where_there_is_a_callback() -> None:
    assert Callbacks().capabilities == {}
    assert Callbacks(elicitation=say_yes).capabilities == {"elicitation": {"form": {}, "url": {}}}
    assert Callbacks(sampling=Recorder(SAID).ask).capabilities == {"sampling": {}}
    assert Callbacks(roots=lambda context: NO_ROOTS).capabilities == {"roots": {}}
    every = Callbacks(elicitation=say_yes, sampling=Recorder(SAID).ask, roots=Recorder(NO_ROOTS).ask)
    assert set(every.capabilities) == {"elicitation", "sampling", "roots"}


# ── Ctrl-C ────────────────────────────────────────────────────────────────────────────────────

AT_THE_KEYBOARD: Final = """
import signal, sys
import anyio
from mcp_types import ElicitResult
from mcp_tasks_client import BlockingTasksClient, MemoryJournal, TasksClient
from mcp_tasks_client.testing import input_required, working
from tests.scripted_session import ScriptedSession
signal.signal(signal.SIGINT, signal.default_int_handler)

def ask(context, params):
    return ElicitResult(action="accept", content={"name": input("Who? ")})

form = {"message": "Who?", "requestedSchema": {"type": "object"}}
asks = input_required("t", {"k": {"method": "elicitation/create", "params": form}}, poll_interval_ms=5)
server = ScriptedSession(calls=[working("t", poll_interval_ms=5)], gets={"t": [asks]})
options = {"journal": MemoryJournal(), "elicitation": ask}

async def main():
    async with TasksClient(server, **options) as client:
        await client.call_tool("tool")

if sys.argv[1] == "blocking":
    with BlockingTasksClient(server, **options) as client:
        client.call_tool("tool")
else:
    anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("host", ["asyncio", "trio", "blocking"])
def test_ctrl_c_while_a_plain_function_waits_for_somebody_to_type_ends_the_process(host: str) -> None:
    pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    terminal, its = pty.openpty()
    command = [sys.executable, "-c", AT_THE_KEYBOARD, host]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its)
    os.close(its)
    said = b""

    def hear(until: bytes) -> None:
        nonlocal said
        while until not in said:
            assert connection.wait([terminal], LIMIT_S), said
            said += os.read(terminal, 1000)

    try:
        hear(until=b"Who? ")
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # how a terminal says that nobody has it open any more
            hear(until=b"nobody says this")
        assert process.wait(LIMIT_S) != 0
        assert b"KeyboardInterrupt" in said  # on trio sometimes within a group
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
