"""The IDs that the shell offers behind TAB."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which

import pytest

from mcp_tasks_client import Scope
from tests._forked import make_command
from tests.kit.command import Command, asking, form
from tests.kit.terminal import COMMAND, surroundings


def complete(command: Command, line: str, shell: str) -> str:
    """The text that a shell gets behind a line."""
    completing = {"_MCP_TASKS_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ran = subprocess.run(
        make_command(*COMMAND[1:]),
        env=surroundings(command.journal, **completing, _TYPER_COMPLETE_ARGS=line),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stderr == ""
    return ran.stdout


def offered(command: Command, line: str) -> dict[str, str]:
    """The IDs that are offered behind a line, and the words beside each."""
    return dict(one.split("\t") for one in complete(command, line, "fish").splitlines() if one)


@pytest.fixture
def calls(over_file: Command) -> Command:
    """The command over a journal with a call of ada's and one of bob's, each of which asks a question."""
    over_file.write(
        asking(form(), record_id="a" * 32, scope=Scope("http://x/", "ada"), tool=None),
        asking(form(), record_id="b" * 32, scope=Scope("http://x/", "bob"), tool="build", label="Nightly"),
    )
    return over_file


@pytest.mark.parametrize("verb", ["show", "wait", "cancel"])
def test_a_call_is_offered_with_words_that_tell_it_from_others(calls: Command, verb: str) -> None:
    assert offered(calls, f"mcp-tasks {verb} ") == {
        "a" * 32: "task input_required",
        "b" * 32: "build Nightly input_required",
    }
    assert offered(calls, f"mcp-tasks {verb} bb").keys() == {"b" * 32}


def test_a_question_is_offered_with_the_words_of_its_call(calls: Command) -> None:
    found = offered(calls, "mcp-tasks answer ")
    assert {name[:2]: words for name, words in found.items()} == {"aa": "task", "bb": "build Nightly"}


@pytest.mark.parametrize("verb", ["show", "wait", "cancel", "answer"])
def test_only_calls_that_the_verb_sees_are_offered(calls: Command, verb: str) -> None:
    assert {name[:2] for name in offered(calls, f"mcp-tasks {verb} --principal ada ")} == {"aa"}


@pytest.mark.parametrize("verb", ["show", "answer"])
@pytest.mark.parametrize("option", ["--journal /no/such/file", "--journal {none}", "--keys /no/such/file"])
def test_of_a_journal_that_cannot_be_read_nothing_is_offered_nor_said(
    calls: Command, tmp_path: Path, verb: str, option: str
) -> None:
    none = tmp_path / "none"
    none.write_text("This is no journal. " * 1000)
    assert offered(calls, f"mcp-tasks {verb} {option.format(none=none)} ") == {}


@pytest.mark.parametrize(
    "words", [r"\$(touch ran)", r"\`touch ran\`", "'; touch ran; '", '" $(touch ran)', "(e)"]
)
@pytest.mark.parametrize("verb", ["show", "answer"])
def test_no_sign_of_a_label_or_a_tool_is_offered_that_means_something_to_a_shell(
    over_file: Command, tmp_path: Path, verb: str, words: str
) -> None:
    over_file.write(asking(form(), label=words), asking(form(), tool=words))
    for shown in offered(over_file, f"mcp-tasks {verb} ").values():
        assert all(one.isalnum() or one in " .,_-" for one in shown)
    if which("zsh") is None:
        return  # the shell is not everywhere; the signs are the same for all shells
    zsh = complete(over_file, f"mcp-tasks {verb} ", "zsh")
    # _arguments of zsh evaluates once more the words that stand in the double parentheses.
    offers = zsh[zsh.index("((") + 2 : zsh.rindex("))")].replace("''", "'")
    subprocess.run(["zsh", "-c", f"offers=( {offers} )"], check=True, cwd=tmp_path)
    assert not (tmp_path / "ran").exists()


def test_letters_of_any_script_are_offered(over_file: Command) -> None:
    over_file.write(asking(form(), tool="build", label="Aufträge 注文, v1.2_a-b"))
    assert list(offered(over_file, "mcp-tasks answer ").values()) == ["build Aufträge 注文, v1.2_a-b"]
