"""An answer from any terminal: by values, by JSON, by a word; whether or not a program drives the call."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from mcp_tasks_client.cli.exits import Exit
from tests.kit.command import Command, asking, form
from tests.kit.terminal import in_terminal
from tests.real_server import RealServer

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the tests have a terminal on POSIX alone")

PERSON: Final = form(
    "Who?",
    ("name", "age"),
    name={"type": "string", "minLength": 2},
    age={"type": "integer", "minimum": 0},
    keen={"type": "boolean"},
    size={"type": "string", "enum": ["S", "XL"], "default": "S"},
)
URL_QUESTION: Final = {
    "method": "elicitation/create",
    "params": {"mode": "url", "message": "Sign in", "url": "https://mcp.example/in", "elicitationId": "1"},
}


def ask(command: Command, url: str, tool: str, *pairs: str) -> str:
    """Have a call ask, and its program end. Returns the ID of its first question."""
    ran = command("call", url, tool, *pairs, "--key", "k", "--questions", "fail")
    assert ran.code == Exit.QUESTION_WAITS, ran
    return command.wait_for_question()


def content_of(command: Command, question_id: str) -> Any:
    """What was left in the journal as the answer."""
    body = json.loads(command.left(question_id.partition("-")[0])[question_id])
    return body.get("content") if body["action"] == "accept" else body["action"]


# ── answers that are sent ─────────────────────────────────────────────────────────────────────────


def test_an_answer_to_a_call_that_nobody_drives_goes_with_the_line_that_it_names(
    real_server: RealServer, command: Command
) -> None:
    question = ask(command, real_server.url, "deploy", "service=web")
    since = real_server.mark()
    ran = command("answer", question, "version=3")
    assert (ran.code, ran.out) == (0, "")
    words, line = ran.err.splitlines()
    assert words == (
        "The answer is in the journal. No living program drives the call, so nobody sends it yet. To send it "
        "and go on with the call:"
    )
    assert not real_server.witness(method="tasks/update", since=since)
    verb, record = line.split()[1:]
    waited = command(verb, record)
    assert (waited.code, waited.out) == (0, "web 3 is deployed\n")
    assert len(real_server.witness(method="tasks/update", since=since)) == 1


def test_the_program_that_drives_the_call_sends_the_answer(real_server: RealServer, command: Command) -> None:
    line = ("call", real_server.url, "deploy", "service=web", "--questions", "leave")
    with command.running(*line) as program:
        question = command.wait_for_question()
        ran = command("answer", question[:13], "version=3")
        assert (ran.code, ran.out) == (0, "")
        assert "The program that drives the call sends it." in ran.err
        assert f"mcp-tasks wait {question[:8]}" in ran.err
        assert program.communicate(timeout=30)[0] == "web 3 is deployed\n"
        assert program.returncode == 0


@pytest.mark.parametrize(("option", "said"), [("--decline", "declined"), ("--cancel", "cancelled")])
def test_a_question_is_declined_or_dismissed_by_a_word_of_its_own(
    real_server: RealServer, over_file: Command, option: str, said: str
) -> None:
    question = ask(over_file, real_server.url, "deploy", "service=web")
    assert over_file("answer", question, option).code == 0
    assert over_file("wait", question[:8]).out == f"web {said} is deployed\n"


def test_a_visit_is_accepted_by_a_step_of_its_own(real_server: RealServer, over_file: Command) -> None:
    question = ask(over_file, real_server.url, "ask_url")
    refused = over_file("answer", question, "done=yes")
    assert refused.code == Exit.USAGE
    assert "no form to fill in" in refused.err
    assert over_file("answer", question, "--accept").code == 0
    assert over_file("wait", question[:8]).out == "accept\n"


def test_of_several_questions_the_receipt_names_the_next_one(
    real_server: RealServer, over_file: Command
) -> None:
    question = ask(over_file, real_server.url, "ask_many")
    ambiguous = over_file("answer", question[:8], "colour=red")
    assert ambiguous.code == Exit.USAGE
    assert "2 questions are open under" in ambiguous.err
    lines = [line for line in over_file("questions").out.splitlines() if "mcp-tasks" in line]
    messages = [one["params"]["message"] for one in over_file("questions", "--json").document]
    first = "colour=red" if messages[0] == "Which colour?" else "size=XL"
    second = "size=XL" if first == "colour=red" else "colour=red"
    ran = over_file("answer", lines[0].split()[-1], first)
    assert ran.err.splitlines()[-2:] == ["The call asks more:", lines[1]]
    ran = over_file("answer", lines[1].split()[-1], second)
    assert "The call asks more" not in ran.err


# ── values ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("given", "content"),
    [
        (["name=Ada", "age=7"], {"name": "Ada", "age": 7}),
        (["name=12", "age:=7", "keen=true"], {"name": "12", "age": 7, "keen": True}),
        (["name=decline", "age=7", "size=XL"], {"name": "decline", "age": 7, "size": "XL"}),
        (["--input-json", '{"name": "Ada", "age": 7}'], {"name": "Ada", "age": 7}),
        (["--input-json", '{"name": "Ada", "age": 7}', "age=8"], {"name": "Ada", "age": 8}),
        (["--input-json", "-"], {"name": "stdin", "age": 1}),
        (["--input-json", "@FILE"], {"name": "file", "age": 2}),
    ],
)
def test_values_are_texts_by_the_form_or_json(
    over_file: Command, tmp_path: Path, given: list[str], content: dict[str, Any]
) -> None:
    file = tmp_path / "answer.json"
    file.write_text('{"name": "file", "age": 2}')
    over_file.write(asking(PERSON))
    question = over_file.wait_for_question()
    arguments = [one.replace("FILE", str(file)) for one in given]
    assert over_file("answer", question, *arguments, given='{"name": "stdin", "age": 1}').code == 0
    assert content_of(over_file, question) == content


def test_a_form_is_accepted_as_it_is_with_the_defaults_of_its_required_fields(over_file: Command) -> None:
    over_file.write(asking(form("Sure?", ("size",), size={"type": "string", "default": "S"})))
    question = over_file.wait_for_question()
    assert over_file("answer", question, "--accept").code == 0
    assert content_of(over_file, question) == {"size": "S"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["name=Ada", "age=old"], "age"),
        (["name=A", "age=7"], "name"),
        (["name=Ada", "age=-1"], "age"),
        (["name=Ada"], "age"),
        (["name=Ada", "age=7", "nmae=Ada"], "nmae"),
        (["name=Ada", "age=7", "size=M"], "size"),
        (["name=Ada", "name=Bob", "age=7"], "name"),
        (["name"], "name"),
        (["name:=Ada", "age=7"], "name"),
        (["--input-json", '["Ada"]'], "--input-json"),
        (["--input-json", '{"name": "Ada", "age": "7"}'], "age"),
        (["--input-json", '{"nmae": "Ada", "age": 7}'], "nmae"),
        (["--input-json", "@/nowhere"], "--input-json"),
        (["--accept"], "name"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_name_and_nothing_is_committed(
    over_file: Command, given: list[str], named: str
) -> None:
    over_file.write(asking(PERSON))
    question = over_file.wait_for_question()
    ran = over_file("answer", question, *given)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert named in ran.err
    assert over_file("answer", question, "--decline").code == 0, "it is open still"


@pytest.mark.parametrize(
    "given", [["a=b", "--decline"], ["--accept", "--cancel"], ["--input-json={}", "--accept"]]
)
def test_two_answers_in_one_line_are_refused(over_file: Command, given: list[str]) -> None:
    over_file.write(asking(PERSON))
    ran = over_file("answer", over_file.wait_for_question(), *given)
    assert ran.code == Exit.USAGE
    assert "Give values, or one of --accept, --decline and --cancel." in ran.err


def test_without_an_answer_and_without_a_terminal_the_error_names_the_ways_to_give_one(
    over_file: Command,
) -> None:
    over_file.write(asking(PERSON))
    ran = over_file("answer", over_file.wait_for_question())
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    for word in ("field=value", "--input-json", "--accept", "--decline", "--cancel"):
        assert word in ran.err


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
@pytest.mark.parametrize("given", ["--accept", "--decline", "a=b"])
def test_a_question_for_a_program_is_left_to_it(over_file: Command, method: str, given: str) -> None:
    over_file.write(asking({"method": method, "params": {"messages": [], "maxTokens": 1}}))
    ran = over_file("answer", over_file.wait_for_question(), given)
    assert ran.code == Exit.USAGE
    assert f"This question is {method}, which the program of the call answers." in ran.err


# ── who was faster ────────────────────────────────────────────────────────────────────────────────


def test_an_answer_that_was_given_is_told_from_another_one(over_file: Command) -> None:
    over_file.write(asking(PERSON))
    question = over_file.wait_for_question()
    answer = ["--input-json", '{"name": "Ada", "age": 7}']
    assert over_file("answer", question, *answer).code == 0
    for given, words in (
        (answer, "This question has the same answer already, and the first one counts."),
        (["--decline"], "This question has another answer already, and the first one counts."),
        (["name=Bob", "age:=7"], "This question has an answer already, and the first one counts."),
    ):
        ran = over_file("answer", question, *given)
        assert (ran.code, ran.out) == (Exit.USAGE, "")
        assert ran.err == f"mcp-tasks: {words}\n  mcp-tasks wait {question[:8]}\n"
    shortened = over_file("answer", question[:13], "--decline")
    assert shortened.code == Exit.GONE
    assert "it has one, or the server does not ask it any more" in shortened.err
    assert content_of(over_file, question) == {"name": "Ada", "age": 7}


def test_a_question_whose_call_is_over_or_unknown_is_gone(
    real_server: RealServer, over_file: Command
) -> None:
    question = ask(over_file, real_server.url, "deploy", "service=web")
    over_file("answer", question, "version=3")
    over_file("wait", question[:8])
    ran = over_file("answer", question, "version=3")
    assert ran.code == Exit.GONE
    assert ran.err == f"mcp-tasks: The call of this question has ended.\n  mcp-tasks show {question[:8]}\n"
    unknown = over_file("answer", "f00d", "--json", "--decline")
    assert (unknown.code, unknown.error["code"]) == (Exit.GONE, "gone")


def test_a_call_that_is_being_cancelled_takes_no_answer(real_server: RealServer, over_file: Command) -> None:
    question = ask(over_file, real_server.url, "deploy", "service=web")
    assert over_file("cancel", question[:8]).code == 0
    assert over_file("answer", question, "version=3").code == Exit.GONE


def test_of_another_principal_no_question_is_answered(over_file: Command) -> None:
    over_file.write(asking(PERSON))
    question = over_file.wait_for_question()
    assert over_file("answer", question, "--decline", "--principal", "bob").code == Exit.GONE
    assert over_file("answer", question, "--decline", "--principal", "alice").code == 0


# ── for programs ──────────────────────────────────────────────────────────────────────────────────


def test_the_json_of_an_answer_has_these_fields(over_file: Command) -> None:
    over_file.write(asking(PERSON))
    question = over_file.wait_for_question()
    ran = over_file("answer", question, "name=Ada", "age=old", "--json")
    assert ran.error == {
        "code": "usage",
        "message": ran.error["message"],
        "record": None,
        "next": None,
    }
    ran = over_file("answer", question, "name=Ada", "age=7", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.document == {
        "question": question,
        "record": question.partition("-")[0],
        "action": "accept",
        "driven": False,
        "next": f"mcp-tasks wait {question[:8]}",
    }


# ── the form ──────────────────────────────────────────────────────────────────────────────────────


@posix_only
def test_without_an_answer_in_a_terminal_the_question_is_put_as_a_form(over_file: Command) -> None:
    over_file.write(asking(form("Name?", ("name",), name={"type": "string"}), label="the web"))
    question = over_file.wait_for_question()
    with in_terminal(over_file.journal, "answer", question[:8]) as terminal:
        terminal.see("https://mcp.example/", "report", "the web", "Name?", "name")
        terminal.type("Ada\r")
        terminal.see("Ada")
        terminal.type("s")
        assert terminal.wait() == 0
        assert terminal.echoes
        terminal.see("The answer is in the journal.", f"mcp-tasks wait {question[:8]}")
    assert content_of(over_file, question) == {"name": "Ada"}


@posix_only
def test_the_form_goes_away_when_somebody_else_answers(over_file: Command) -> None:
    over_file.write(asking(form("Name?", ("name",), name={"type": "string"})))
    question = over_file.wait_for_question()
    with in_terminal(over_file.journal, "answer", question) as terminal:
        terminal.see("Name?")
        terminal.type("Bo")
        assert over_file("answer", question, "name=Ada").code == 0
        assert terminal.wait() == Exit.GONE
        assert terminal.echoes
        terminal.see("waits for no answer any more", f"mcp-tasks wait {question[:8]}")
    assert content_of(over_file, question) == {"name": "Ada"}


@posix_only
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_form_says_nothing_of_others_and_names_the_line_that_goes_on(
    sent: int, code: int, over_file: Command
) -> None:
    over_file.write(asking(form("Name?", ("name",), name={"type": "string"})))
    question = over_file.wait_for_question()
    with in_terminal(over_file.journal, "answer", question) as terminal:
        terminal.see("1 of 1 >")
        os.kill(terminal.pid, sent)
        assert terminal.wait() == code
        assert terminal.echoes
        assert "no longer" not in terminal.text
        terminal.see(
            "Nothing was sent. The question waits for an answer:", f"mcp-tasks answer {question[:8]}-"
        )


@posix_only
@pytest.mark.parametrize(
    ("variables", "unwanted"), [({"TERM": "dumb"}, rb"\x1b"), ({"NO_COLOR": "1"}, rb"\x1b\[[0-9;]*\b1[;m]")]
)
def test_a_terminal_that_wants_none_gets_no_escape_sequences_or_no_styles(
    variables: dict[str, str], unwanted: bytes, over_file: Command
) -> None:
    over_file.write(asking(form("Name?", ("name",), name={"type": "string"})))
    question = over_file.wait_for_question()
    with in_terminal(over_file.journal, "answer", question, more=variables) as terminal:
        terminal.see("1 of 1 >")
        terminal.type("\x04")
        terminal.see("x: cancel >")
        terminal.interrupt()
        terminal.wait()
        assert re.findall(unwanted, terminal.raw) == []


@posix_only
def test_ctrl_c_in_the_form_answers_nothing(over_file: Command) -> None:
    over_file.write(asking(form("Name?", ("name",), name={"type": "string"})))
    question = over_file.wait_for_question()
    with in_terminal(over_file.journal, "answer", question) as terminal:
        terminal.see("Name?", "Enter")
        terminal.interrupt()
        assert terminal.wait() == Exit.INTERRUPTED
        assert terminal.echoes
        terminal.see("Nothing was sent. The question waits for an answer:")
    assert over_file.left(question.partition("-")[0]) == {}
