"""A question of a server before the person at the terminal: field after field, a review, then one key.

All of it stays in the scrollback: there is no dialog that could be clipped. Our words stand at the left, and
text of the server stands behind a bar, so that it cannot pass for ours. Any word that is typed is a value:
declining is a key.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mcp_types import ElicitRequestURLParams, ElicitResult
from prompt_toolkit import PromptSession
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.input import create_input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation
from prompt_toolkit.output import create_output
from prompt_toolkit.output.plain_text import PlainTextOutput
from prompt_toolkit.shortcuts import print_formatted_text
from prompt_toolkit.utils import get_cwidth, is_dumb_terminal

from mcp_tasks_client import FormError
from mcp_tasks_client.foreign_text import many_lines, one_line
from mcp_tasks_client.forms import read_form, read_url

if TYPE_CHECKING:
    from mcp_types import ElicitRequestFormParams
    from prompt_toolkit.application.current import AppSession
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPressEvent
    from prompt_toolkit.layout.processors import TransformationInput
    from prompt_toolkit.output import Output

    from mcp_tasks_client.forms import Choice, Field, Form

__all__ = ["ask"]

_MARGIN: Final = 8
_FEWEST_CHOICES: Final = 10
_MOST_LINES: Final = 40
_LONGEST_TITLE: Final = 200
_UNSEEN: Final = "·"
"""In place of a character that a terminal would obey instead of showing it."""

_SEND, _CHANGE, _DECLINE, _CANCEL = "s", "c", "d", "x"


class _LeftError(Exception):
    """The person leaves the field for the review."""


class _InterruptedError(Exception):
    """The person pressed Ctrl-C."""


class _WithdrawnError(Exception):
    """The question is withdrawn from this person."""


async def ask(
    params: ElicitRequestFormParams | ElicitRequestURLParams,
    *,
    server: str | None,
    tool: str | None,
    label: str | None = None,
    refused: str | None = None,
    withdrawn: asyncio.Event | None = None,
    is_leaving: Callable[[], bool] = lambda: False,
    input: Input | None = None,
    output: Output | None = None,
) -> ElicitResult | None:
    """Put a question to the person at the terminal.

    Ctrl-C does as SIGINT does, whose handler is the program's own. A task that is cancelled here ends its
    prompt first, so that the terminal is as it was.

    Args:
        params: The question.
        server: The name of the server that asks; ``None`` if it is not known.
        tool: The tool of whose call it asks, likewise.
        label: Of the call.
        refused: The server's words, if it has refused the last answer.
        withdrawn: Set when the question is withdrawn from this person.
        is_leaving: True if the program was told to end. The form then says nothing of the withdrawal.
        input: stdin, if none is given.
        output: stderr, if none is given.

    Returns:
        The answer; ``None`` if the question was withdrawn, or the person pressed Ctrl-C.

    Raises:
        EOFError: The input has ended. The question is not answered.
    """
    withdrawn = withdrawn or asyncio.Event()
    if withdrawn.is_set():
        return None
    with (
        create_app_session(input or create_input(), output or _create_output()) as session,
        session.input.raw_mode(),  # also between the fields, where a key may be typed ahead
    ):
        if input is None:  # a terminal; the keys of an input that is given are for this question
            _drop_keys(session.input)
        terminal = _Terminal(session, withdrawn)
        try:
            _introduce(terminal, params.message, server, tool, label, refused)
            if isinstance(params, ElicitRequestURLParams):
                return await _ask_to_visit(terminal, params.url)
            return await _ask_for_values(terminal, params)
        except _WithdrawnError:
            if not is_leaving():
                terminal.say(
                    "This question waits for you no longer: somebody else has answered it, it was taken "
                    "back, or your waiting is over."
                )
            return None
        except _InterruptedError:
            signal.raise_signal(signal.SIGINT)
            return None
        finally:
            terminal.close()


def _drop_keys(input: Input) -> None:
    """Drop the keys that were pressed before the question was on the screen: they do not answer it."""
    clear_typeahead(input)
    while input.read_keys():
        pass
    input.flush_keys()


def _introduce(
    terminal: _Terminal,
    message: str,
    server: str | None,
    tool: str | None,
    label: str | None,
    refused: str | None,
) -> None:
    terminal.say("")
    terminal.say("A server asks you something. Behind each bar stands its text, not ours.", "bold")
    terminal.quote("Server", one_line(server or "unknown"))
    terminal.quote("Tool", one_line(tool or "unknown"))
    if label is not None:
        terminal.quote("Label", one_line(label))
    terminal.quote("Asks", many_lines(message, most=_MOST_LINES))
    if refused is not None:
        terminal.say("The server has refused the last answer:")
        terminal.quote("", one_line(refused))


# ── a URL ─────────────────────────────────────────────────────────────────────────────────────────


async def _ask_to_visit(terminal: _Terminal, url: str) -> ElicitResult:
    """Show a URL, and wait until the person has been there. Nothing is opened."""
    keys = {_DECLINE: "decline", _CANCEL: "cancel"}
    try:
        visit = read_url(url)
    except FormError as error:
        terminal.say(str(error))
    else:
        terminal.say("It asks you to visit a page. Nothing is opened here. The whole URL is:")
        terminal.say("")
        terminal.write(visit.url)  # in one piece, so that it can be copied
        terminal.say("")
        terminal.quote("Host", visit.host, "bold")
        for warning in visit.warnings:
            terminal.say(f"Warning: {warning}", "bold")
        terminal.say("Open it yourself if you trust this host, and come back when you are done there.")
        keys = {"y": "I have done it", **keys}
    key = await _choose(terminal, keys)
    return ElicitResult(action="accept") if key == "y" else _refusal(key)


# ── a form ────────────────────────────────────────────────────────────────────────────────────────


async def _ask_for_values(terminal: _Terminal, params: ElicitRequestFormParams) -> ElicitResult:
    try:
        form = read_form(params)
    except FormError as error:
        terminal.say(str(error))
        return _refusal(await _choose(terminal, {_DECLINE: "decline", _CANCEL: "cancel"}))
    if not form.fields:
        key = await _choose(terminal, {_SEND: "send a yes", _DECLINE: "decline", _CANCEL: "cancel"})
        return _accepted({}) if key == _SEND else _refusal(key)
    terminal.say(
        "Enter takes a value, and Ctrl-U empties the line. An empty value skips what is optional. Ctrl-D "
        "goes on to the review, where you can also decline or cancel."
    )
    return await _fill(terminal, form)


async def _fill(terminal: _Terminal, form: Form) -> ElicitResult:
    """Ask for each field, then have all of them reviewed until the person decides."""
    texts: dict[str, str] = {}
    to_ask: Sequence[Field] = form.fields
    while True:
        try:
            for one in to_ask:
                texts[one.name] = await _ask_for(terminal, form, one, texts.get(one.name, one.default or ""))
        except _LeftError:
            pass
        content = _review(terminal, form, texts)
        missing = [one for one in form.fields if one.name not in texts]
        keys = {} if content is None else {_SEND: "send"}
        keys |= {_CHANGE: "go on" if missing else "change", _DECLINE: "decline", _CANCEL: "cancel"}
        match await _choose(terminal, keys):
            case "s":
                assert content is not None
                return _accepted(content)
            case "c":
                to_ask = missing or await _pick(terminal, form)
            case key:
                return _refusal(key)


async def _ask_for(terminal: _Terminal, form: Form, one: Field, text: str) -> str:
    """A text that the field takes. A wrong one can be edited."""
    place = form.fields.index(one) + 1
    terminal.say("")
    terminal.say(f"{place} of {len(form.fields)}, {'required' if one.required else 'optional'}: {one.hint}")
    terminal.quote("Field", one_line(one.title, _LONGEST_TITLE))
    if one.description is not None:
        terminal.quote("About", many_lines(one.description, most=_MOST_LINES))
    if one.kind == "json":
        terminal.quote("Schema", many_lines(json.dumps(one.schema), most=_MOST_LINES))
    _list_choices(terminal, one)
    while True:
        text = await terminal.read_line(f"{place} of {len(form.fields)} > ", text)
        try:
            one.read(text)
        except FormError as error:
            terminal.say(str(error))
        else:
            return text


def _list_choices(terminal: _Terminal, one: Field) -> None:
    most = max(_FEWEST_CHOICES, terminal.rows - _MARGIN)
    for number, choice in enumerate(one.choices[:most], start=1):
        terminal.quote(str(number) if one.numbered else "", _name(choice))
    if len(one.choices) > most:
        terminal.say(f"… and {len(one.choices) - most} more, which you can name by their values.")


def _name(choice: Choice) -> str:
    value = choice.value if isinstance(choice.value, str) else json.dumps(choice.value)
    shown = one_line(value, _LONGEST_TITLE) or json.dumps(value)[:_LONGEST_TITLE]
    return shown if choice.title == value else f"{one_line(choice.title, _LONGEST_TITLE)} ({shown})"


def _review(terminal: _Terminal, form: Form, texts: Mapping[str, str]) -> dict[str, Any] | None:
    """Show all values. Returns the content that they make; ``None`` if they make none yet."""
    terminal.say("")
    terminal.say("Review. Nothing has been sent.", "bold")
    for number, one in enumerate(form.fields, start=1):
        terminal.quote(str(number), one_line(one.title, _LONGEST_TITLE))
        if one.name not in texts:
            terminal.write(f"{'':{_MARGIN}}   not asked yet")
        elif one.leaves_out(texts[one.name]):
            terminal.write(f"{'':{_MARGIN}}   left out")
        else:
            terminal.quote("=", many_lines(_tell(one, texts[one.name]), most=_MOST_LINES))
    if any(one.name not in texts for one in form.fields):
        return None
    try:
        return form.read(texts)
    except FormError as error:  # a rule over several fields
        terminal.say(str(error))
        return None


def _tell(one: Field, text: str) -> str:
    """The value of a text in words: of a choice also its title."""
    value = one.read(text)
    if not one.choices:
        return one.show(value) or json.dumps(value)
    offered = {json.dumps(choice.value): _name(choice) for choice in one.choices}
    chosen = value if one.kind == "choices" else [value]
    return ", ".join(offered[json.dumps(each)] for each in chosen) or "none of them"


async def _pick(terminal: _Terminal, form: Form) -> Sequence[Field]:
    """The field to change; none if the person goes back."""
    if len(form.fields) == 1:
        return form.fields
    names = {one.name: one for one in form.fields}
    names |= {str(number): one for number, one in enumerate(form.fields, start=1)}
    while True:
        terminal.say(f"Which one, 1 to {len(form.fields)}? Enter alone goes back.")
        try:
            text = await terminal.read_line("Change > ", "")
        except _LeftError:
            return ()
        if not text.strip():
            return ()
        if text.strip() in names:
            return (names[text.strip()],)


async def _choose(terminal: _Terminal, keys: Mapping[str, str]) -> str:
    """One of the keys."""
    if _CANCEL in keys:
        terminal.say("Decline says no. Cancel makes no choice. The call goes on either way.")
    return await terminal.read_key(keys)


def _refusal(key: str) -> ElicitResult:
    return ElicitResult(action="decline" if key == _DECLINE else "cancel")


def _accepted(content: dict[str, Any]) -> ElicitResult:
    # Not validated: a server may ask for more than the protocol's kinds, and the SDK's error would quote it.
    return ElicitResult.model_construct(action="accept", content=content)


# ── the terminal ──────────────────────────────────────────────────────────────────────────────────


class _PlainOutput(PlainTextOutput):
    """A terminal that knows no escape sequences, in its width."""

    def get_size(self) -> Size:
        """The size that the terminal tells."""
        try:
            size = os.get_terminal_size(self.fileno())
        except OSError:
            return super().get_size()
        return Size(rows=size.lines, columns=size.columns) if size.columns else super().get_size()


def _create_output() -> Output:
    return _PlainOutput(sys.stderr) if is_dumb_terminal() else create_output(sys.stderr)


class _Terminal:
    """Lines that are written, and prompts that end by themselves."""

    def __init__(self, session: AppSession, withdrawn: asyncio.Event) -> None:
        self._session = session
        self._is_plain = bool(os.environ.get("NO_COLOR"))
        self._gone = asyncio.ensure_future(withdrawn.wait())

    def close(self) -> None:
        """Stop waiting for a withdrawal."""
        self._gone.cancel()

    @property
    def rows(self) -> int:
        """The height of the terminal."""
        return self._session.output.get_size().rows

    @property
    def _columns(self) -> int:
        return self._session.output.get_size().columns

    def say(self, text: str, style: str = "") -> None:
        """Write a sentence of ours, in lines that fit the terminal."""
        self.write(textwrap.fill(text, max(20, self._columns)), style)

    def write(self, line: str, style: str = "") -> None:
        """Write a line as it is. It is no markup."""
        style = "" if self._is_plain else style
        print_formatted_text(FormattedText([(style, line)]), output=self._session.output)

    def quote(self, name: str, text: str, style: str = "") -> None:
        """Write foreign text behind a bar, under a name of ours. It has passed ``foreign_text``."""
        for number, line in enumerate(_wrap(text, max(20, self._columns - _MARGIN - 4))):
            self.write(f"{'' if number else name:>{_MARGIN}} │ {line}", style)

    async def read_line(self, label: str, text: str) -> str:
        """A line that the person types, beginning with a text that can be edited.

        Raises:
            _LeftError: Ctrl-D.
        """
        bindings = KeyBindings()

        @bindings.add("c-d")
        def leave(event: KeyPressEvent) -> None:
            event.app.exit(exception=_LeftError())

        if is_dumb_terminal():  # which cannot show the text to edit
            label += _harmless(text)
        return await self._read(label, bindings, text)

    async def read_key(self, keys: Mapping[str, str]) -> str:
        """One of some keys, each of which has a name."""
        bindings = KeyBindings()

        @bindings.add(Keys.Any)
        @bindings.add("enter")
        @bindings.add("c-d")
        def ignore(event: KeyPressEvent) -> None:
            pass

        def choose(event: KeyPressEvent) -> None:
            key = event.data.lower()
            event.current_buffer.text = keys[key]
            event.app.exit(result=key)

        for key in keys:
            bindings.add(key)(choose)
            bindings.add(key.upper())(choose)
        label = ", ".join(f"{key}: {name}" for key, name in keys.items())
        while True:
            try:
                key = await self._read(f"{label} > ", bindings, "")
            except _LeftError:  # a dumb terminal heeds Ctrl-D and Enter first
                continue
            if key in keys:
                return key

    async def _read(self, label: str, bindings: KeyBindings, text: str) -> str:
        """Run a prompt to its end: by the person, by the withdrawal of the question, or by cancellation."""
        prompt = PromptSession[str](
            FormattedText([("" if self._is_plain else "bold", label)]),
            key_bindings=bindings,
            input_processors=[_Harmless()],
            prompt_continuation=_continue,
            interrupt_exception=_InterruptedError,
            eof_exception=_LeftError,
            enable_suspend=True,  # Ctrl-Z stops the program, as it does elsewhere
        )
        # SIGINT stays with the program's handler, which prompt_toolkit would not put back.
        asked = asyncio.ensure_future(
            prompt.prompt_async(default=text, handle_sigint=False, set_exception_handler=False)
        )
        try:
            await asyncio.wait([asked, self._gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end(asked)
        if self._gone.done():
            asked.exception()  # it does not matter
            raise _WithdrawnError
        return asked.result()

    async def _end(self, asked: asyncio.Future[str]) -> None:
        """End a prompt by its application. Cancelling its task could leave the terminal without echo."""
        app = self._session.app  # there is one: the first step of the prompt came before this one
        if app is not None and not app.is_done:
            app.exit()
        if not asked.done():
            await asyncio.wait([asked])


class _Harmless(Processor):
    """Shows a mark for each character that a terminal would obey, also in the default that a server gave."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """The line as it is shown. Each character keeps its place."""
        return Transformation(
            [(one[0], _harmless(one[1])) for one in transformation_input.fragments],
        )


def _continue(width: int, line: int, wraps: int) -> str:
    """The margin of a further line of one value."""
    return "│ ".rjust(width)


def _harmless(text: str) -> str:
    return "".join(one if one.isprintable() else _UNSEEN for one in text)


def _wrap(text: str, width: int) -> Iterator[str]:
    """The lines of a text, none of them wider than the terminal, which would wrap it past the bar."""
    for line in text.split("\n"):
        begin = used = 0
        for place, character in enumerate(line):
            columns = get_cwidth(character)
            if used + columns > width:
                yield line[begin:place]
                begin, used = place, 0
            used += columns
        yield line[begin:]
