"""A question before a person: what they see, what they type, and how it ends. Without a pseudo-terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pyte
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from mcp_tasks_client.cli.form import ask
from tests._requirements import requirement

LIMIT_S: Final = 30.0
COLUMNS: Final = 80
LINES: Final = 24
SCROLLED: Final = 400
"""Lines that are kept, of which the program knows nothing."""

ENTER, C_C, C_D, C_U, BACKSPACE = "\r", "\x03", "\x04", "\x15", "\x7f"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals of one kind, wherever the tests run."""
    monkeypatch.setenv("TERM", "xterm-256color")


class Screen:
    """A terminal that is high enough to scroll nothing, and what was written to it."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.written = ""
        self._screen = pyte.Screen(COLUMNS, SCROLLED)
        self._stream = pyte.Stream(self._screen)
        self._drawn = asyncio.Event()

    def write(self, text: str) -> None:
        self.written += text
        self._stream.feed(text)

    def flush(self) -> None:
        self._drawn.set()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise NotImplementedError

    @property
    def lines(self) -> list[str]:
        lines = [line.rstrip() for line in self._screen.display]
        return lines[: self._screen.cursor.y + 1]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def alone(self) -> bool:
        """True while no mode is on that a shell would suffer from."""
        return "\x1b[?1049h" not in self.written and self.written.count("\x1b[?2004h") == self.written.count(
            "\x1b[?2004l"
        )

    async def until(self, is_so: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while not is_so():
                    self._drawn.clear()
                    await self._drawn.wait()
        except TimeoutError:
            pytest.fail(f"not seen on:\n{self.text[-2_000:]}")


class Person:
    """Somebody who reads the screen and types."""

    def __init__(self, screen: Screen, keys: PipeInput, asked: asyncio.Task[ElicitResult | None]) -> None:
        self.screen = screen
        self.asked = asked
        self._keys = keys
        self._line = -1

    async def type(self, prompt: str, keys: str) -> None:
        """Wait for a new prompt, and type."""
        await self.see(prompt)
        self._line = len(self.screen.lines)
        self._keys.send_text(keys)

    async def see(self, prompt: str) -> None:
        def is_there() -> bool:
            lines = self.screen.lines
            return self.asked.done() or (len(lines) > self._line and prompt in lines[-1])

        await self.screen.until(is_there)
        assert not self.asked.done(), (self.screen.text, self.asked)

    def leave(self) -> None:
        self._keys.close()

    async def result(self) -> ElicitResult | None:
        async with asyncio.timeout(LIMIT_S):
            return await self.asked


@asynccontextmanager
async def asking(params: Any, **options: Any) -> AsyncIterator[Person]:
    screen = Screen()
    output = Vt100_Output(
        screen,  # type: ignore[arg-type]  # the part of a stream that is used
        lambda: Size(rows=LINES, columns=COLUMNS),
        term="xterm-256color",
        enable_cpr=False,
    )
    options = {"server": "http://127.0.0.1:8000/mcp", "tool": "deploy", **options}
    with create_pipe_input() as keys:
        task = asyncio.create_task(ask(params, input=keys, output=output, **options))
        yield Person(screen, keys, task)
        assert task.done()
    assert screen.alone


def form(required: tuple[str, ...] = (), /, **properties: Any) -> ElicitRequestFormParams:
    schema = {"type": "object", "properties": properties, "required": [*required]}
    return ElicitRequestFormParams(message="Which one?", requested_schema=schema)


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]  # a coroutine


async def content_of(params: ElicitRequestFormParams, *typed: str) -> Any:
    """The content that is sent when these lines are typed into the fields, one after the other."""
    async with asking(params) as person:
        for line in typed:
            await person.type(" >", line + ENTER)
        await person.type("s: send", "s")
        result = await person.result()
    assert result is not None
    assert result.action == "accept"
    return result.content


# ── each kind of field ────────────────────────────────────────────────────────────────────────────

COLOURS = {"enum": ["red", "green", "blue"]}


@requirement("elicit:defaults")
@pytest.mark.parametrize(
    ("described", "typed", "value"),
    [
        ({"type": "string"}, "decline", "decline"),
        ({"type": "string"}, "é 漢 \U0001f600", "é 漢 \U0001f600"),
        ({"type": "string", "default": "web"}, "-2", "web-2"),
        ({"type": "string", "default": "web"}, C_U + "api", "api"),
        ({"type": "string", "format": "date"}, "2026-11-28", "2026-11-28"),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "integer", "default": 80}, "80", 8080),
        ({"type": "boolean"}, "y", True),
        ({"type": "boolean", "default": True}, "", True),
        (COLOURS, "2", "green"),
        (COLOURS, "blue", "blue"),
        ({"oneOf": [{"const": "r", "title": "Red"}]}, "red", "r"),
        ({"type": "array", "items": COLOURS}, "3,1", ["blue", "red"]),
        ({"type": "array", "items": COLOURS}, "", []),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ],
)
def test_what_is_typed_is_sent(described: dict[str, Any], typed: str, value: Any) -> None:
    async def main() -> None:
        assert await content_of(form(("it",), it=described), typed) == {"it": value}

    run(main)


def test_an_optional_field_is_skipped_by_enter_alone() -> None:
    async def main() -> None:
        params = form(
            ("a",), a={"type": "string"}, b={"type": "integer"}, c={"type": "string", "default": "x"}
        )
        assert await content_of(params, "1", "", C_U) == {"a": "1"}

    run(main)


@requirement("elicit:validate")
@pytest.mark.parametrize(
    ("described", "wrong", "said", "right", "value"),
    [
        ({"type": "integer"}, "many", "it: this is no whole number. Needed: a whole number.", C_U + "3", 3),
        ({"type": "integer", "maximum": 9}, "10", "greater than the maximum of 9", BACKSPACE, 1),
        ({"type": "string"}, "", "it: a value is needed. Needed: a text.", "x", "x"),
        (
            {"type": "string", "format": "email"},
            "ada",
            "an e-mail address",
            "@example.com",
            "ada@example.com",
        ),
        ({"type": "boolean"}, "may be", "Needed: yes or no.", C_U + "n", False),
        (COLOURS, "pink", "none of the choices", C_U + "1", "red"),
        (
            {"type": "array", "items": COLOURS, "minItems": 2},
            "1",
            "less than 2 items",
            ",2",
            ["red", "green"],
        ),
    ],
)
def test_what_is_wrong_is_said_below_and_can_be_edited(
    described: dict[str, Any], wrong: str, said: str, right: str, value: Any
) -> None:
    async def main() -> None:
        async with asking(form(("it",), it=described)) as person:
            await person.type("1 of 1 >", wrong + ENTER)
            await person.type(f"1 of 1 > {wrong}".rstrip(), right + ENTER)
            assert said in person.screen.text.replace("\n", "")
            await person.type("s: send", "s")
            result = await person.result()
        assert result is not None
        assert result.content == {"it": value}

    run(main)


@requirement("elicit:who-asks")
def test_the_person_sees_which_server_and_which_tool_asks_and_what_each_field_is() -> None:
    described = {"type": "string", "title": "Version", "description": "As in the\nchangelog", "maxLength": 9}
    colour = {"enum": ["r", "g"], "enumNames": ["Red", "g"], "default": "g"}

    async def main() -> None:
        params = form(("v",), v=described, colour=colour, more={"type": "object"})
        async with asking(params, label="lunch", refused="No such version") as person:
            await person.type("1 of 3 >", "1.2" + ENTER)
            await person.type("2 of 3 > g", ENTER)
            await person.type("3 of 3 >", ENTER)
            await person.type("s: send", "x")
            await person.result()
        assert (
            person.screen.text
            == """
A server asks you something. Behind each bar stands its text, not ours.
  Server │ http://127.0.0.1:8000/mcp
    Tool │ deploy
   Label │ lunch
    Asks │ Which one?
The server has refused the last answer:
         │ No such version
Enter takes a value, and Ctrl-U empties the line. An empty value skips what is
optional. Ctrl-D goes on to the review, where you can also decline or cancel.

1 of 3, required: a text of at most 9 characters
   Field │ Version
   About │ As in the
         │ changelog
1 of 3 > 1.2

2 of 3, optional: one of them, by its number or value
   Field │ colour
       1 │ Red (r)
       2 │ g
2 of 3 > g

3 of 3, optional: JSON, such as "text", 3 or {"name": "value"}
   Field │ more
  Schema │ {"type": "object"}
3 of 3 >

Review. Nothing has been sent.
       1 │ Version
       = │ 1.2
       2 │ colour
       = │ g
       3 │ more
           left out
Decline says no. Cancel makes no choice. The call goes on either way.
s: send, c: change, d: decline, x: cancel > cancel
"""
        )

    run(main)


def test_more_choices_than_the_screen_has_lines_are_counted() -> None:
    async def main() -> None:
        many = {"enum": [f"v{number}" for number in range(LINES)]}
        async with asking(form(("it",), it=many)) as person:
            await person.type("1 of 1 >", f"v{LINES - 1}{ENTER}")
            await person.type("s: send", "s")
            result = await person.result()
        assert "… and 8 more, which you can name by their values." in person.screen.text
        assert result is not None
        assert result.content == {"it": f"v{LINES - 1}"}

    run(main)


# ── the review ────────────────────────────────────────────────────────────────────────────────────

TWO: Final = form(("a", "b"), a={"type": "string"}, b={"type": "integer"})


@requirement("elicit:review")
def test_a_value_can_be_changed_before_it_is_sent() -> None:
    async def main() -> None:
        async with asking(TWO) as person:
            await person.type("1 of 2 >", "x" + ENTER)
            await person.type("2 of 2 >", "7" + ENTER)
            await person.type("c: change", "c")
            await person.type("Change >", "9" + ENTER)
            await person.type("Change >", "2" + ENTER)
            await person.type("2 of 2 > 7", "7" + ENTER)
            await person.type("c: change", "C")
            await person.type("Change >", ENTER)
            await person.type("c: change", "c")
            await person.type("Change >", C_D)
            await person.type("c: change", "c")
            await person.type("Change >", "a" + ENTER)
            await person.type("1 of 2 > x", "y" + ENTER)
            await person.type("s: send", "S")
            result = await person.result()
        assert result is not None
        assert (result.action, result.content) == ("accept", {"a": "xy", "b": 77})

    run(main)


def test_the_review_tells_values_from_what_was_left_out() -> None:
    titled = {"enum": ["r", "g", "b"], "enumNames": ["Red", "Green", "b"]}

    async def main() -> None:
        params = form(
            ("several", "nothing", "empty"),
            several={"type": "array", "items": titled},
            none={"type": "array", "items": titled},
            nothing={"anyOf": [{"type": "integer"}, {"type": "null"}]},
            empty={"type": "string", "default": ""},
            left={"type": "string"},
        )
        async with asking(params) as person:
            for number, typed in enumerate(["b, 1", "[]", "", "", ""], start=1):
                await person.type(f"{number} of 5 >", typed + ENTER)
            await person.type("s: send", "s")
            result = await person.result()
        assert result is not None
        assert result.content == {"several": ["b", "r"], "none": [], "nothing": None, "empty": ""}
        review = person.screen.text.partition("Review.")[2].splitlines()
        told = [line for line in review if line.startswith(("       =", "          "))]
        assert [line.strip() for line in told] == [
            "= │ b, Red (r)",
            "= │ none of them",
            "= │ null",
            '= │ ""',
            "left out",
        ]

    run(main)


def test_the_only_field_is_changed_without_asking_which() -> None:
    async def main() -> None:
        async with asking(form(("a",), a={"type": "string"})) as person:
            await person.type("1 of 1 >", "x" + ENTER)
            await person.type("c: change", "c")
            await person.type("1 of 1 > x", "y" + C_D)  # thinks better of it
            await person.type("s: send", "s")
            result = await person.result()
        assert result is not None
        assert result.content == {"a": "x"}

    run(main)


@requirement("elicit:refuse")
@pytest.mark.parametrize(("key", "action"), [("d", "decline"), ("x", "cancel")])
@pytest.mark.parametrize("answered", [0, 1, 2])
def test_declining_and_cancelling_are_keys_wherever_the_person_is(
    answered: int, key: str, action: str
) -> None:
    async def main() -> None:
        async with asking(TWO) as person:
            for number in range(answered):
                await person.type(f"{number + 1} of 2 >", "1" + ENTER)
            if answered < 2:
                await person.type(f"{answered + 1} of 2 >", "half" + C_D)
                await person.see("c: go on")
                assert "s: send" not in person.screen.text
            await person.type(" >", "q" + ENTER + C_D + "\x1b[200~s\x1b[201~" + key)
            result = await person.result()
        assert result == ElicitResult(action=action)  # type: ignore[arg-type]  # one of the two
        assert person.screen.text.count("d: decline, x: cancel >") == 1

    run(main)


def test_a_person_who_left_for_the_review_can_go_on() -> None:
    async def main() -> None:
        async with asking(TWO) as person:
            await person.type("1 of 2 >", "x" + ENTER)
            await person.type("2 of 2 >", C_D)
            await person.type("c: go on", "s" + "c")
            await person.type("2 of 2 >", "3" + ENTER)
            await person.type("s: send", "s")
            result = await person.result()
        assert "not asked yet" in person.screen.text
        assert result is not None
        assert result.content == {"a": "x", "b": 3}

    run(main)


def test_a_rule_over_several_fields_is_told_in_the_review() -> None:
    params = form((), a={"type": "string"}, b={"type": "string"})
    params.requested_schema["dependentRequired"] = {"a": ["b"]}

    async def main() -> None:
        async with asking(params) as person:
            await person.type("1 of 2 >", "x" + ENTER)
            await person.type("2 of 2 >", ENTER)
            await person.type(" >", "sc")
            assert "The content does not match the form" in person.screen.text
            await person.type("Change >", "2" + ENTER)
            await person.type("2 of 2 >", "y" + ENTER)
            await person.type("s: send", "s")
            result = await person.result()
        assert result is not None
        assert result.content == {"a": "x", "b": "y"}

    run(main)


@pytest.mark.parametrize(("key", "action"), [("s", "accept"), ("d", "decline"), ("x", "cancel")])
def test_a_form_without_fields_is_one_question(key: str, action: str) -> None:
    async def main() -> None:
        async with asking(form()) as person:
            await person.type("s: send a yes, d: decline, x: cancel >", key)
            result = await person.result()
        assert result is not None
        assert (result.action, result.content) == (action, {} if action == "accept" else None)
        assert "Review" not in person.screen.text

    run(main)


def test_a_form_that_cannot_be_used_can_be_declined() -> None:
    async def main() -> None:
        async with asking(form((), a={"type": "nonsense"})) as person:
            await person.type("d: decline, x: cancel >", "sd")
            result = await person.result()
        assert result == ElicitResult(action="decline")
        assert "The form cannot be answered" in person.screen.text

    run(main)


# ── a URL ─────────────────────────────────────────────────────────────────────────────────────────


def visit(url: str) -> ElicitRequestURLParams:
    return ElicitRequestURLParams(message="Pay, please", url=url)


@requirement("elicit:url")
@pytest.mark.parametrize(("key", "action"), [("y", "accept"), ("d", "decline"), ("x", "cancel")])
def test_a_url_is_shown_whole_with_its_host_apart(key: str, action: str) -> None:
    url = "https://pay.example:8443/orders/42?token=" + "k" * 150

    async def main() -> None:
        async with asking(visit(url)) as person:
            await person.type("y: I have done it, d: decline, x: cancel >", "s" + ENTER + key)
            result = await person.result()
        assert result == ElicitResult(action=action)  # type: ignore[arg-type]  # one of the three
        assert url in person.screen.text.replace("\n", "")
        assert "    Host │ pay.example\n" in person.screen.text
        assert "Warning" not in person.screen.text

    run(main)


@requirement("elicit:suspicious-url")
def test_a_url_that_may_deceive_is_warned_of() -> None:
    async def main() -> None:
        async with asking(visit("http://bank.example@xn--bnk-iqa.example/")) as person:
            await person.type("y: I have done it", "y")
            await person.result()
        assert person.screen.text.count("Warning: ") == 3
        assert "    Host │ xn--bnk-iqa.example\n" in person.screen.text

    run(main)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "javascript:alert(1)", "https://a\\@b/", "x\x1b[2J"])
def test_a_url_of_another_kind_can_only_be_declined(url: str) -> None:
    async def main() -> None:
        async with asking(visit(url)) as person:
            await person.type("d: decline, x: cancel >", "yd")
            result = await person.result()
        assert result == ElicitResult(action="decline")
        assert url not in person.screen.text

    run(main)


# ── it ends by others ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("typed", "seen"),
    [("", "1 of 2 >"), ("half a word", "half a word"), ("x" + ENTER, "2 of 2 >"), (C_D, "x: cancel >")],
    ids=["field", "typing", "next", "review"],
)
def test_a_question_that_somebody_else_has_answered_goes_away_and_says_so(typed: str, seen: str) -> None:
    async def main() -> None:
        withdrawn = asyncio.Event()
        async with asking(TWO, withdrawn=withdrawn) as person:
            await person.type("1 of 2 >", typed)
            await person.screen.until(lambda: seen in person.screen.lines[-1])
            withdrawn.set()
            assert await person.result() is None
        assert person.screen.text.endswith(
            "This question waits for you no longer: somebody else has answered it, it was\n"
            "taken back, or your waiting is over.\n"
        )

    run(main)


def test_a_question_that_was_answered_before_it_was_put_is_not_put() -> None:
    async def main() -> None:
        withdrawn = asyncio.Event()
        withdrawn.set()
        async with asking(TWO, withdrawn=withdrawn) as person:
            assert await person.result() is None
        assert person.screen.text == ""

    run(main)


@pytest.mark.parametrize("soon", [True, False])
def test_cancelling_ends_the_prompt_before_the_task(soon: bool) -> None:
    async def main() -> None:
        async with asking(TWO) as person:
            if soon:
                await asyncio.sleep(0)
            else:
                await person.see("1 of 2 >")
            person.asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await person.result()
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_ctrl_c_does_as_sigint_does(monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: list[int] = []

    async def main() -> None:
        for prompts in (["1 of 2 >"], ["1 of 2 >", "c: go on"]):
            async with asking(TWO) as person:
                await person.type(prompts[0], "x" + (C_D if prompts[1:] else C_C))
                for prompt in prompts[1:]:
                    await person.type(prompt, C_C)
                assert await person.result() is None
            assert "somebody else" not in person.screen.text

    before = signal.signal(signal.SIGINT, lambda number, frame: signalled.append(number))
    try:
        run(main)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signalled == [signal.SIGINT, signal.SIGINT]


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio has no signal handlers there")
def test_the_program_s_handler_of_sigint_stays() -> None:
    async def main() -> None:
        signalled = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, signalled.set)
        async with asking(TWO) as person:
            await person.see("1 of 2 >")
            for prompt, key in (("", C_D), ("d: decline", "d")):
                signal.raise_signal(signal.SIGINT)
                await asyncio.wait_for(signalled.wait(), LIMIT_S)
                signalled.clear()
                await person.type(prompt, key)
            assert await person.result() == ElicitResult(action="decline")
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(signalled.wait(), LIMIT_S)

    run(main)


def test_ctrl_c_ends_a_program_as_sigint_would() -> None:
    async def main() -> None:
        async with asking(TWO) as person:
            await person.type("1 of 2 >", C_C)
            await person.result()
            await asyncio.sleep(LIMIT_S)

    with pytest.raises(KeyboardInterrupt):
        run(main)


def test_an_input_that_ends_answers_nothing() -> None:
    async def main() -> None:
        async with asking(TWO) as person:
            await person.see("1 of 2 >")
            person.leave()
            with pytest.raises(EOFError):
                await person.result()

    run(main)


# ── terminals and texts of any kind ───────────────────────────────────────────────────────────────


def test_a_dumb_terminal_asks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")

    async def main() -> None:
        params = form(("a",), a={"type": "string", "default": "web"})
        async with asking(params) as person:
            await person.type("1 of 1 > web", "-2" + ENTER)
            await person.type("s: send", "q" + ENTER)
            await person.type("s: send", C_D)
            await person.type("s: send", "s")
            result = await person.result()
        assert result is not None
        assert result.content == {"a": "web-2"}

    run(main)


HOSTILE: Final = "\x1b[2J\x1b]52;c;eA==\x07\u202e\u200b\x9b1A<b>[red]%s{x}\r\nDecline says no.\x00"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@example(HOSTILE)
@example("x" * 1_000)
@example("漢" * 500)
@example("\n" * 500)
@given(st.text())
def test_no_text_of_a_server_leaves_its_place(text: str) -> None:
    described = {
        "type": "string",
        "title": text,
        "description": text,
        "default": text.encode("utf-8", "replace").decode(),
        "oneOf": [{"const": text.encode("utf-8", "replace").decode(), "title": text}],
    }
    params = form(
        (),
        **{
            "it": described,
            text.encode("utf-8", "replace").decode() or "a": {"type": "string", "default": "\x1b[2J\u202e"},
        },
    )
    params = params.model_copy(update={"message": text})

    async def main() -> None:
        async with asking(params, server=text, tool=text, label=text, refused=text) as person:
            await person.screen.until(lambda: "\x1b[?2004h" in person.screen.written)  # the first prompt
            await person.type("", C_D)
            await person.type("d: decline", "d")
            await person.result()
        ours = [
            line for line in person.screen.lines if " │ " not in line and line.strip() and " │" not in line
        ]
        assert ours[0].startswith("A server asks you something.")
        assert [line for line in ours if line.startswith("Decline")] == [
            "Decline says no. Cancel makes no choice. The call goes on either way."
        ]
        assert all(character.isprintable() for line in person.screen.lines for character in line)
        assert "\x1b[2J" not in person.screen.written
        assert "\u202e" not in person.screen.written

    run(main)
