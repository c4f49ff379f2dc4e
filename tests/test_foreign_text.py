"""Foreign text is harmless where it is shown: printable, bounded, and nowhere else on the screen."""

from __future__ import annotations

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tasks_client.foreign_text import many_lines, one_line

HOSTILE = (
    "\x1b[2J\x1b[1;1Hgone",
    "\x1b]52;c;c2VjcmV0\x07",
    "\x1b]8;;https://evil.example/\x1b\\click\x1b]8;;\x1b\\",
    "\x9b31mred",
    "a\rb\x08c\x0bd\x0ce",
    "\u202egnp.exe",
    "zero\u200bwidth\u2028line",
    "\ud83d",
    "[bold]markup[/bold] :smile:",
)
sequences = st.text(alphabet="\x1b[];0123456789mHJ\r\n\t ab")
texts = st.text(st.characters()) | st.sampled_from(HOSTILE) | sequences


@given(texts, st.integers(1, 400))
def test_one_line_is_printable_and_bounded(text: str, longest: int) -> None:
    shown = one_line(text, longest)
    assert shown.isprintable()
    assert len(shown) <= longest


@given(texts, st.integers(1, 400), st.integers(1, 10))
def test_many_lines_are_printable_and_bounded(text: str, longest: int, most: int) -> None:
    shown = many_lines(text, longest, most)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert len(shown) <= longest
    assert shown.count("\n") < most


@given(texts)
def test_a_screen_changes_only_below_its_own_place(text: str) -> None:
    screen = pyte.Screen(80, 200)
    stream = pyte.Stream(screen)
    stream.feed("above\r\n")
    for shown in (one_line(text), many_lines(text, 2000, 100)):
        stream.feed(shown.replace("\n", "\r\n"))
        assert screen.display[0].rstrip() == "above"
        assert not screen.title


@pytest.mark.parametrize("text", ["plain", "Aufträge 注文", "a b", ""])
def test_a_harmless_text_stays_as_it_is(text: str) -> None:
    assert one_line(text) == many_lines(text) == text


def test_a_text_keeps_its_lines_and_indentation() -> None:
    assert many_lines("def f():\r\n\treturn 1\n\n# end") == "def f():\n    return 1\n\n# end"


def test_a_text_that_is_cut_says_so() -> None:
    assert one_line("abcdef", 4) == "abc…"
    assert many_lines("a\nb\nc", most=2) == "a\nb…"


def test_megabytes_cost_no_more_than_their_beginning() -> None:
    assert len(one_line("x" * 10_000_000)) == len(one_line("x" * 400)) == 300


@pytest.mark.parametrize("before", ["", " " * 5_000, "x" * 290])
def test_the_id_of_a_task_is_shortened_wherever_it_stands(before: str) -> None:
    task_id = "4f9c2b7e-secret"
    shown = one_line(f"{before}{task_id} and {task_id}", task_id=task_id)
    assert task_id[:6] not in shown
    assert len(shown) <= 300
