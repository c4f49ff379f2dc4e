"""``mcp-tasks tools``: the tools of a server, written so that a line of ``call`` can be made of them."""

from __future__ import annotations

import json as json_
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from mcp_tasks_client.foreign_text import many_lines, one_line

from .exits import CommandError, Exit
from .journal import Nowhere
from .lines import make_line
from .listing import list_tools
from .output import Output, as_sent
from .running import run
from .server import (
    AnyServer,
    BearerOption,
    HeaderEnvOption,
    HeaderOption,
    ServerArgument,
    name_server,
    read_server,
)

if TYPE_CHECKING:
    from mcp_types import Tool

    from mcp_tasks_client.forms import Field

__all__ = ["tools"]

_MOST_CHOICES: Final = 8

_HINTED: Final = {"text": "a text", "integer": "a whole number", "number": "a number"}
"""The kinds whose hint is worth telling, unless it is this one, which says no more than the kind."""

_TASK: Final = {
    "required": "The call becomes a task, always.",
    "optional": "The call may become a task.",
    "forbidden": "The call never becomes a task.",
}


def tools(
    server: ServerArgument,
    tool: Annotated[
        str | None, typer.Argument(help="Describe this tool whole, and write a line that calls it.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="The server's own objects: an array, or one for TOOL.")
    ] = False,
    header: HeaderOption = None,
    bearer_env: BearerOption = None,
    header_env: HeaderEnvOption = None,
) -> None:
    """List the tools of a server, and how they are called.

    Arguments in brackets may be left out. No tool is called.
    """
    where, output = Nowhere(), Output(as_json=json)

    async def main() -> None:
        target = read_server(server, header, bearer_env, header_env)
        async with target.client(where, "later") as client:
            found = [one async for one in list_tools(client) if tool in (None, one.name)]
        if tool is not None and not found:
            raise CommandError(
                Exit.USAGE,
                f"The server has no tool {tool!r}.",
                next=make_line("tools", *name_server(target), *target.words),
            )
        if json:
            documents = [as_sent(one) for one in found]
            output.document(documents if tool is None else documents[0])
        elif tool is not None:
            output.text("\n".join(_describe(found[0], target)))
        elif found:
            output.text("\n".join(line for one in found for line in _list(one)))
        else:
            output.note("The server has no tools.")

    run(main, output, where)


# ── for people ────────────────────────────────────────────────────────────────────────────────────


def _list(tool: Tool) -> Iterator[str]:
    """A tool as one of many: its signature, and a line about it."""
    yield " ".join([one_line(tool.name, 100), *map(_sign, _fields(tool))])
    words = [one_line(tool.description or tool.title or "", 200), _TASK.get(_task_support(tool), "")]
    if any(words):
        yield f"    {' '.join(filter(None, words))}"


def _describe(tool: Tool, server: AnyServer) -> Iterator[str]:
    """A tool whole, with a line that calls it."""
    yield " ".join([one_line(tool.name), *map(_sign, _fields(tool))])
    if tool.title:
        yield one_line(tool.title)
    if tool.description:
        yield ""
        yield many_lines(tool.description.strip())
    if _task_support(tool) in _TASK:
        yield ""
        yield _TASK[_task_support(tool)]
    if fields := _fields(tool):
        yield ""
        yield "Arguments"
        for one in fields:
            yield f"  {_sign(one)}"
            hint = f"({one.hint})" if one.kind in _HINTED and one.hint not in _HINTED.values() else ""
            words = [one_line(one.description or "", 1000), hint]
            if any(words):
                yield f"      {' '.join(filter(None, words))}"
    yield ""
    yield "Input schema"
    yield _indent(tool.input_schema)
    if tool.output_schema is not None:
        yield ""
        yield "Output schema"
        yield _indent(tool.output_schema)
    yield ""
    yield "Call it so:"
    yield f"  {_example(tool, server)}"


def _indent(schema: Any) -> str:
    return json_.dumps(schema, indent=2)  # of ASCII alone


def _task_support(tool: Tool) -> str:
    """The ``taskSupport`` of a tool; empty if the server gives none."""
    return "" if tool.execution is None else tool.execution.task_support or ""


def _fields(tool: Tool) -> tuple[Field, ...]:
    """The arguments of a tool. One without a name stands for all of them."""
    from mcp_types import ElicitRequestFormParams

    from mcp_tasks_client.forms import read_form  # on use: help is shown without it

    try:
        return read_form(ElicitRequestFormParams(message="", requested_schema=tool.input_schema)).fields
    except ValueError:  # the schema cannot be used
        return _fields(tool.model_copy(update={"input_schema": {"type": "object", "anyOf": [{}]}}))


def _sign(field: Field) -> str:
    """An argument as one types it, in brackets if it may be left out."""
    default = _default(field)
    default = "" if default is None else f", or else {one_line(default, 40)}"
    name = one_line(field.name, 60)
    match field.kind:
        case "json" if not field.name:
            return "--input-json <json>"
        case "json" | "choices":
            typed = f"{name}:=<json{default}>"
        case "choice":
            names = [one_line(_typed(one.value), 40) for one in field.choices[:_MOST_CHOICES]]
            more = ["…"] if len(field.choices) > _MOST_CHOICES else []
            typed = f"{name}=<{'|'.join([*names, *more])}{default}>"
        case kind:
            typed = f"{name}=<{kind}{default}>"
    return typed if field.required else f"[{typed}]"


def _default(field: Field) -> str | None:
    """The default of an argument as one types it; ``None`` if there is none."""
    if field.kind == "boolean" and field.default is not None:
        return "true" if field.default == "yes" else "false"
    return field.default


def _typed(value: Any) -> str:
    """A choice as one types it."""
    return value if isinstance(value, str) else json_.dumps(value)


def _example(tool: Tool, server: AnyServer) -> str:
    """A line that calls the tool, with its required arguments."""
    words = [_fill(one) for one in _fields(tool) if one.required]
    line = make_line("call", *name_server(server), tool.name, *words, *server.words)
    command = "" if name_server(server) else " -- COMMAND"
    return one_line(f"{line}{command}", 2000)


def _fill(field: Field) -> str:
    """An argument with a value of its kind."""
    if not field.name:
        return "--input-json={}"
    default = _default(field)
    if default is not None and field.kind not in ("json", "choices"):
        return f"{field.name}={default}"
    schema = field.schema if isinstance(field.schema, dict) else {}
    match field.kind:
        case "choice":
            return f"{field.name}={_typed(field.choices[0].value)}"
        case "text":
            return f"{field.name}=TEXT"
        case "integer" | "number":
            return f"{field.name}=1"
        case "boolean":
            return f"{field.name}=true"
        case "choices":
            return f"{field.name}:={json_.dumps([field.choices[0].value])}"
        case _:
            empty = {"array": "[]", "object": "{}"}
            return f"{field.name}:={empty.get(str(schema.get('type')), 'null')}"
