"""What servers ask, listed: from any terminal, whichever program made the call."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from time import time
from typing import Any

import pytest

from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.cli.lines import short_question
from tests.kit.command import Command, asking, form
from tests.kit.terminal import in_terminal
from tests.real_server import RealServer


def visit(url: str) -> dict[str, Any]:
    params = {"mode": "url", "message": "Sign in", "url": url, "elicitationId": "1"}
    return {"method": "elicitation/create", "params": params}


def test_an_open_question_is_listed_with_its_call_its_times_and_the_line_that_answers_it(
    real_server: RealServer, command: Command
) -> None:
    call = ("deploy", "service=web", "--label", "the web", "--key", "k", "--questions", "fail")
    assert command("call", real_server.url, *call).code == Exit.QUESTION_WAITS
    listed = command("questions")
    assert listed.code == 0
    assert listed.err == ""
    head, message, line = listed.out.splitlines()
    name = line.split()[-1]
    assert head.startswith(f"{name}  deploy: the web  {real_server.url}  waits for ")
    assert ", answer it until 20" in head
    assert message == "  Which version of web?"
    assert line == f"  mcp-tasks answer {name}"
    assert command("answer", name, "version=3").code == 0
    assert command("questions").out == ""


def test_the_json_of_a_question_has_these_fields(real_server: RealServer, command: Command) -> None:
    call = ("deploy", "service=web", "--label", "the web", "--key", "k", "--questions", "fail", "--json")
    asked = command("call", real_server.url, *call).error
    (question,) = command("questions", "--json").document
    times = [question.pop("asked_at"), question.pop("expires_at")]
    assert all(datetime.fromisoformat(one).tzinfo for one in times)
    name = question.pop("question")
    assert asked["next"] == f"mcp-tasks answer {short_question(name)}"
    assert name.startswith(f"{asked['record']}-")
    assert question == {
        "record": asked["record"],
        "tool": "deploy",
        "label": "the web",
        "endpoint": real_server.url,
        "principal": "",
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": "Which version of web?",
            "requestedSchema": {
                "type": "object",
                "properties": {"version": {"type": "string"}},
                "required": ["version"],
            },
        },
        "refused": None,
    }


@pytest.mark.parametrize("has_journal", [False, True])
def test_no_question_is_an_empty_list(over_file: Command, has_journal: bool) -> None:
    if has_journal:
        over_file.write(asking())
    code = 0 if has_journal else Exit.JOURNAL_UNUSABLE
    listed, document = over_file("questions"), over_file("questions", "--json")
    assert (listed.code, listed.out) == (code, "")
    if has_journal:
        assert listed.err == "No question is open.\n"
        assert (document.code, document.document) == (0, [])


@pytest.mark.parametrize(
    ("verb", "told"),
    [("ls", "No call is open."), ("questions", "No question is open."), ("prune", "0 calls are forgotten.")],
)
def test_a_user_who_has_made_no_call_is_told_that_there_is_none(tmp_path: Path, verb: str, told: str) -> None:
    """The journal of the user's own is made; one that was named and is not there stays an error."""
    ran = Command("", XDG_STATE_HOME=str(tmp_path), HOME=str(tmp_path))(verb)
    assert (ran.code, ran.out + ran.err) == (0, f"{told}\n")


def test_the_list_can_be_that_of_a_label_a_principal_an_application_and_a_number(over_file: Command) -> None:
    over_file.write(
        asking(form("first"), label="a", application="mine"),
        asking(form("second"), label="b", application="mine", created_at=time() - 80),
        asking(form("third"), label="b", application="other", created_at=time() - 70),
    )

    def asked(*options: str) -> list[str]:
        return [one["params"]["message"] for one in over_file("questions", "--json", *options).document]

    assert asked() == ["first", "second", "third"]
    assert asked("--label", "b") == ["second", "third"]
    assert asked("--application", "mine") == ["first", "second"]
    assert asked("--limit", "1") == ["first"]
    assert asked("--principal", "alice") == ["first", "second", "third"]
    assert asked("--principal", "bob") == []


def test_a_url_is_shown_whole_with_its_host_and_what_to_be_wary_of(over_file: Command) -> None:
    over_file.write(asking(visit("http://u@xn--e-rha.test/in")))
    _, message, *lines = over_file("questions").out.splitlines()
    assert message == "  Sign in"
    assert lines[:2] == ["  Visit http://u@xn--e-rha.test/in", "  Its host is xn--e-rha.test."]
    warnings = "\n".join(lines[2:-1])
    for word in ("not encrypted", "before an @", "Punycode"):
        assert word in warnings


def test_a_url_of_another_scheme_is_not_shown(over_file: Command) -> None:
    over_file.write(asking(visit("javascript:alert(1)")))
    listed = over_file("questions").out
    assert "another scheme than http or https: javascript" in listed
    assert "alert" not in listed


def test_a_question_for_a_program_is_listed_without_a_line(
    real_server: RealServer, over_file: Command
) -> None:
    call = ("ask_model_and_roots", "--key", "k", "--questions", "leave")
    with over_file.running("call", real_server.url, *call):
        over_file.wait_for_question(2)
        listed = over_file("questions").out
    assert "sampling/createMessage, which the program of the call answers." in listed
    assert "roots/list, which the program of the call answers." in listed
    assert "mcp-tasks answer" not in listed


def test_the_words_of_a_server_that_has_refused_an_answer_are_shown(over_file: Command) -> None:
    over_file.write(asking(form(), refusal="Not that\x1b[31m name"))
    assert "\n  The server has refused the last answer: Not that [31m name\n" in over_file("questions").out


@pytest.mark.skipif(sys.platform == "win32", reason="the tests have a terminal on POSIX alone")
@pytest.mark.parametrize("options", [(), ("--limit", "12")])
def test_in_a_terminal_the_list_is_no_higher_than_the_screen(
    over_file: Command, options: tuple[str, ...]
) -> None:
    over_file.write(*(asking(form("long " * 60), created_at=time() - 90 + at) for at in range(12)))
    with in_terminal(over_file.journal, "questions", *options) as terminal:
        assert terminal.wait() == 0
        count = sum("mcp-tasks answer" in line for line in terminal.lines)
        if options:
            assert count == 12
        else:
            assert count == 7, "three lines each, in 24"
            terminal.see("… and 5 more, which are newer: --limit shows them")
            assert len(terminal.lines) == 24
