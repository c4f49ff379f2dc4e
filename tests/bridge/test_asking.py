"""Questions of the server reach a person at the host, or wait for one elsewhere, and never a model."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import httpx
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import Inbox, MemoryJournal, Question
from mcp_tasks_client.bridge import serving
from mcp_tasks_client.protocol import JSONObject
from mcp_tasks_client.testing import ScriptedServer, ask, ask_first, complete, form, text_result

from .behind import URL, Wire, behind
from .memory_host import CURRENT, LIMIT_S, OLDER, OLDEST, VERSIONS, MemoryHost, reference_in, text_of
from .world import bridged

pytestmark = pytest.mark.anyio

SAMPLING: JSONObject = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
        "maxTokens": 9,
    },
}
SAMPLED: JSONObject = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Ho"}}
URL_QUESTION: JSONObject = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Sign", "url": "https://x.test/sign", "elicitationId": "e1"},
}
TITLED: JSONObject = {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}
SEVERAL: JSONObject = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
NESTED: JSONObject = {"type": "object", "properties": {}}


def asking(question: JSONObject, *, first: bool = False) -> Wire:
    """A server whose only tool asks, and returns the answer as text."""

    def tell(answers: Any) -> JSONObject:
        answer = answers["q"]
        return text_result(str(answer.get("content", answer.get("roots", answer.get("action")))))

    server = ScriptedServer(endpoint=URL)
    step = ask_first("q", question) if first else ask("q", question)
    server.tool("asks", [step, complete(tell)], poll_interval_ms=1, settle_s=0.0)
    return Wire(httpx.ASGITransport(server.app))


def accepting(**content: Any) -> Any:
    return lambda params: {"action": "accept", "content": content}


async def the_question(journal: MemoryJournal, inbox: Inbox) -> Question:
    """The only question that is open, once there is one."""
    with anyio.fail_after(LIMIT_S):
        while not (found := await inbox.questions()):
            await anyio.sleep(0.01)
    (question,) = found
    return question


async def answer_elsewhere(journal: MemoryJournal, **content: Any) -> None:
    async with Inbox(journal, endpoint=URL, principal="ada") as inbox:
        question = await the_question(journal, inbox)
        await question.answer(ElicitResult(action="accept", content=content))


# ── to the host ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("first", [False, True], ids=["in the task", "before it"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_form_is_put_to_the_host(version: str, first: bool) -> None:
    host, wire = MemoryHost(version), asking(form("Who?", name="string"), first=first)
    host.answers["elicitation/create"] = accepting(name="Ada")
    async with bridged(wire, host):
        assert text_of(await host.call("asks")) == "{'name': 'Ada'}"
    assert len(host.asked) == 1


async def test_a_question_belongs_to_the_request_that_waits() -> None:
    host, wire = MemoryHost(), asking(form("Who?", name="string"))
    host.answers["elicitation/create"] = accepting(name="Ada")
    async with bridged(wire, host):
        sent = await host.begin("asks")
        await sent.reply()
    ((_, _, related),) = host.asked
    assert related == sent.request_id


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_refusal_of_the_person_is_the_answer(version: str, action: str) -> None:
    host, wire = MemoryHost(version), asking(form("Who?", name="string"))
    host.answers["elicitation/create"] = lambda params: {"action": action}
    async with bridged(wire, host):
        assert text_of(await host.call("asks")) == action
    assert len(host.asked) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_url_is_put_to_a_host_that_visits_urls(version: str) -> None:
    host, wire = MemoryHost(version), asking(URL_QUESTION)
    host.answers["elicitation/create"] = lambda params: {"action": "accept"}
    async with bridged(wire, host):
        await host.call("asks")
    ((_, params, _),) = host.asked
    assert (params["mode"], params["url"]) == ("url", "https://x.test/sign")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_host_that_names_no_mode_is_asked_for_forms_alone(version: str) -> None:
    for question in (form("Who?", name="string"), URL_QUESTION):
        host, wire = MemoryHost(version, capabilities={"elicitation": {}}), asking(question)
        host.answers["elicitation/create"] = accepting(name="Ada")
        async with bridged(wire, host, answer_within_s=LIMIT_S):
            told = text_of(await host.call("asks"))
        assert ("mcp-tasks answer" in told) == (question is URL_QUESTION)
        assert len(host.asked) == (question is not URL_QUESTION)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_host_with_a_model_is_asked_for_a_message(version: str) -> None:
    host, wire = MemoryHost(version), asking(SAMPLING)
    host.answers["sampling/createMessage"] = lambda params: SAMPLED
    async with bridged(wire, host):
        assert "Ho" in text_of(await host.call("asks"))
    assert host.asked[0][1]["maxTokens"] == 9


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_host_with_roots_is_asked_for_them(version: str) -> None:
    host, wire = MemoryHost(version), asking({"method": "roots/list"})
    host.answers["roots/list"] = lambda params: {"roots": [{"uri": "file:///a", "name": "a"}]}
    async with bridged(wire, host):
        assert "file:///a" in text_of(await host.call("asks"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("capability", ["sampling", "roots"])
async def test_the_server_hears_of_abilities_that_the_host_has(version: str, capability: str) -> None:
    for declared in ({}, {capability: {}}):
        host, wire = MemoryHost(version, capabilities=declared), asking(form("Who?", name="string"))
        async with bridged(wire, host, answer_within_s=LIMIT_S):
            await host.call("asks")
        (call,) = wire.calls("asks")
        told = call["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert (capability in told) == (capability in declared)
        assert "elicitation" in told, "a person may answer elsewhere"


# ── across bridges ────────────────────────────────────────────────────────────────────────────────


async def test_answers_of_a_host_reach_a_bridge_that_was_started_in_between() -> None:
    journal, wire = MemoryJournal(), asking(form("Who?", name="string"))
    host = MemoryHost(CURRENT)
    async with bridged(wire, host, journal):
        asked = await (await host.begin("asks")).reply()
    assert asked["resultType"] == "input_required"
    ((key, question),) = asked["inputRequests"].items()
    assert question["params"]["message"] == "Who?"
    later = MemoryHost(CURRENT)
    async with bridged(wire, later, journal):
        answers = {key: {"action": "accept", "content": {"name": "Ada"}}}
        state = {"requestState": asked["requestState"], "inputResponses": answers}
        assert text_of(await later.call("asks", **state)) == "{'name': 'Ada'}"
    assert len(wire.calls("asks")) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_before_there_is_a_task_is_put_to_the_host_that_repeats_the_key(
    version: str,
) -> None:
    journal, wire = MemoryJournal(), asking(form("Who?", name="string"), first=True)
    meta = {"mcp-tasks-client/idempotency-key": "k"}
    host = MemoryHost(OLDER)
    host.answers["elicitation/create"] = lambda params: None  # the person thinks
    async with bridged(wire, host, journal):
        await host.begin("asks", meta=meta)
        await host.until(lambda: host.asked)
    later = MemoryHost(version)
    later.answers["elicitation/create"] = accepting(name="Ada")
    async with bridged(wire, later, journal):
        assert text_of(await later.call("asks", meta=meta)) == "{'name': 'Ada'}"


@pytest.mark.parametrize("answer_within_s", [0.0, LIMIT_S])
async def test_a_state_that_names_no_call_is_told_as_that(answer_within_s: float) -> None:
    host, wire = MemoryHost(CURRENT), asking(form("Who?", name="string"))
    async with bridged(wire, host, answer_within_s=answer_within_s):
        result = await host.call("asks", requestState="mcp-tasks-bridge:nothing", inputResponses={})
    assert result["isError"]
    has_tools = answer_within_s > 0
    assert text_of(result).endswith(" task_list lists the calls.") == has_tools
    assert ("task_list" in text_of(result)) == has_tools
    assert wire.calls("asks") == []


# ── answers that do not fit ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("wrong", [{"name": 5}, {}, {"name": None}])
async def test_an_answer_that_does_not_fit_is_asked_again(version: str, wrong: JSONObject) -> None:
    host, wire = MemoryHost(version), asking(form("Who?", name="string"))
    said = iter([wrong, wrong, {"name": "Ada"}])
    host.answers["elicitation/create"] = lambda params: {"action": "accept", "content": next(said)}
    async with bridged(wire, host):
        assert text_of(await host.call("asks")) == "{'name': 'Ada'}"
    assert len(host.asked) == 3


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_is_left_after_three_answers_that_do_not_fit(version: str) -> None:
    host, wire, journal = MemoryHost(version), asking(form("Who?", name="string")), MemoryJournal()
    host.answers["elicitation/create"] = accepting(name=5)
    async with bridged(wire, host, journal, answer_within_s=LIMIT_S):
        told = text_of(await host.call("asks"))
        assert len(host.asked) == 3
        async with Inbox(journal, endpoint=URL, principal="ada") as inbox:
            question = await the_question(journal, inbox)
        assert f"`mcp-tasks answer {question.question_id}` answers it" in told


@pytest.mark.parametrize("version", [OLDEST, OLDER])
async def test_a_question_is_left_to_others_by_a_host_that_answers_with_an_error(version: str) -> None:
    host, wire, journal = MemoryHost(version), asking(form("Who?", name="string")), MemoryJournal()
    host.answers["elicitation/create"] = lambda params: RuntimeError("no dialog")
    async with bridged(wire, host, journal, answer_within_s=LIMIT_S):
        assert "Do not answer it yourself" in text_of(await host.call("asks"))
    assert len(host.asked) == 1


# ── elsewhere ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reason", ["no capability", "inbox", "no url", "no form"])
async def test_a_host_that_cannot_be_asked_is_told_who_can(
    version: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    capabilities: dict[str, JSONObject] = {
        "no capability": {},
        "no form": {"elicitation": {"url": {}}},
    }
    host = MemoryHost(version, capabilities=capabilities.get(reason, {"elicitation": {"form": {}}}))
    question = URL_QUESTION if reason == "no url" else form("Who?", name="string")
    wire, journal = asking(question), MemoryJournal()
    options = {"questions": "inbox"} if reason == "inbox" else {}
    with caplog.at_level(logging.INFO):
        async with bridged(wire, host, journal, answer_within_s=LIMIT_S, **options):
            told = text_of(await host.call("asks"))
            async with Inbox(journal, endpoint=URL, principal="ada") as inbox:
                asked = await the_question(journal, inbox)
                line = f"mcp-tasks answer {asked.question_id}"
                assert f"Tell the user: in a terminal, `{line}` answers it." in told
                assert line in caplog.text
                content = None if reason == "no url" else {"name": "Ada"}
                await asked.answer(ElicitResult(action="accept", content=content))
            result = await host.call("task_result", {"reference": reference_in(told)})
            assert text_of(result) == ("accept" if content is None else "{'name': 'Ada'}")
    assert host.asked == []


@pytest.mark.parametrize(
    ("version", "field", "is_asked"),
    [
        (OLDEST, TITLED, False),
        (OLDER, TITLED, True),
        (OLDEST, SEVERAL, False),
        (OLDER, SEVERAL, True),
        (OLDER, NESTED, False),
        (OLDEST, {"type": "string", "enum": ["a", "b"]}, True),
        (CURRENT, SEVERAL, True),
    ],
)
async def test_a_form_that_the_version_cannot_express_waits_for_others(
    version: str, field: JSONObject, is_asked: bool
) -> None:
    host, wire = MemoryHost(version), asking(form("Which?", choice=field))
    host.answers["elicitation/create"] = lambda params: {"action": "decline"}
    async with bridged(wire, host, answer_within_s=LIMIT_S):
        told = text_of(await host.call("asks"))
    assert len(host.asked) == is_asked
    assert told == "decline" if is_asked else "mcp-tasks answer" in told


@pytest.mark.parametrize("version", [OLDEST, OLDER])
async def test_the_dialog_of_the_host_is_withdrawn_once_somebody_else_has_answered(version: str) -> None:
    host, wire, journal = MemoryHost(version), asking(form("Who?", name="string")), MemoryJournal()
    host.answers["elicitation/create"] = lambda params: None  # the person thinks
    async with bridged(wire, host, journal):
        sent = await host.begin("asks")
        await host.until(lambda: host.asked)
        await answer_elsewhere(journal, name="Grace")
        assert text_of(await sent.reply()) == "{'name': 'Grace'}"
        await host.until(lambda: host.notified("notifications/cancelled"))


async def test_a_question_that_is_answered_is_not_told_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_BEAT_S", 0.02)
    host, journal = MemoryHost(capabilities={}), MemoryJournal()
    wire = asking(form("Who?", name="string"))
    async with bridged(wire, host, journal, answer_within_s=LIMIT_S):
        told = text_of(await host.call("asks"))
        wire.hold("tasks/update")
        await answer_elsewhere(journal, name="Ada")
        await host.until(lambda: wire.of("tasks/update"))
        arguments = {"reference": reference_in(told), "wait_s": 0}
        assert "still running" in text_of(await host.call("task_result", arguments))
        assert "mcp-tasks answer" not in text_of(await host.call("task_result", arguments))
        sent = await host.begin("task_result", {"reference": reference_in(told)}, token="t")
        await host.until(lambda: len(host.progress("t")) > 2)
        assert not any("answer" in one.get("message", "") for one in host.progress("t"))
        wire.let_go("tasks/update")
        assert text_of(await sent.reply()) == "{'name': 'Ada'}"


async def test_progress_names_the_line_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_BEAT_S", 0.02)
    host, journal = MemoryHost(capabilities={}), MemoryJournal()
    async with bridged(asking(form("Who?", name="string")), host, journal, line_for="answer {}".format):
        sent = await host.begin("asks", token="t")
        line = "A person has to answer: answer "
        await host.until(lambda: any(line in one.get("message", "") for one in host.progress("t")))
        await answer_elsewhere(journal, name="Ada")
        assert text_of(await sent.reply()) == "{'name': 'Ada'}"


async def test_the_question_of_a_plain_call_of_an_older_server_is_put_to_the_host() -> None:
    host = MemoryHost()
    host.answers["elicitation/create"] = accepting(name="Ada")
    async with behind("no tasks") as wire, bridged(wire, host):
        assert text_of(await host.call("asks")) == "hello Ada"
    assert len(wire.calls("asks")) == 1
