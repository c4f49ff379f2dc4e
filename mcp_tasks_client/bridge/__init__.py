"""Durable tasks for hosts in any language: a server in front, behind which each call is one of ours.

``mcp-tasks bridge URL`` is the command of a host's MCP entry. The host speaks to the bridge as it does to any
server. The bridge calls the real server by a :class:`TasksClient`, with a journal. :func:`bridge` is the same
for a program that has the streams of one connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import anyio
from mcp_types import RequestId

import mcp_tasks_client as tasks

from .front import Front
from .introduction import Introduction
from .introspection import replied_id
from .known_hosts import default_answer_within
from .service import Connect

__all__ = ["bridge", "serve_streams"]


async def bridge(
    server: str,
    read_stream: Any,
    write_stream: Any,
    *,
    journal: tasks.Journal | str | os.PathLike[str] | None = None,
    endpoint: str | None = None,
    principal: str | None = None,
    application: str | None = None,
    headers: Any = None,
    http_client: Any = None,
    auth: Any = None,
    answer_within_s: float | None = None,
    questions: Literal["host", "inbox"] = "host",
    new_for: Sequence[str] = (),
    memory: Path | None = None,
) -> None:
    """Serve one connection of a host, until it ends. Its unfinished calls are left to the journal.

    Args:
        server: The URL of the real server.
        read_stream: The host's messages, as ``mcp.server.stdio.stdio_server()`` gives them.
        write_stream: Takes the replies, likewise. It is closed.
        journal: As of :class:`TasksClient`.
        endpoint: Likewise.
        principal: Likewise.
        application: Names the calls in the journal. ``None`` is the name that the host gives itself.
        headers: As of :class:`TasksClient`.
        http_client: Likewise.
        auth: Likewise.
        answer_within_s: Seconds after which a call that goes on is answered with a reference, by which the
            tool ``task_result`` has its result. 0 is never. ``None`` chooses by the host.
        questions: ``"host"`` puts the server's questions to the host, if it can be asked. ``"inbox"`` leaves
            them to persons who answer them elsewhere. These may answer in both cases, and the first answer
            counts.
        new_for: Tools of which each call is a new one, by name or pattern (``deploy_*``). A call of any other
            tool that repeats one for which nobody waits joins it.
        memory: The folder that keeps what servers have said about themselves; ``None`` keeps nothing.

    Raises:
        ValueError: The URL is none, or an option makes no sense.
    """

    def connect(application: str, **callbacks: Any) -> tuple[tasks.TasksClient, tasks.Inbox]:
        client = tasks.TasksClient(
            server,
            journal=journal,
            endpoint=endpoint,
            principal=principal,
            application=application,
            headers=headers,
            http_client=http_client,
            auth=auth,
            output_schema="off",
            **callbacks,
        )
        inbox = tasks.Inbox(
            journal, endpoint=client.endpoint, principal=principal or "", application=application
        )
        return client, inbox

    await serve_streams(
        connect,
        endpoint or server,
        read_stream,
        write_stream,
        application=application,
        answer_within_s=answer_within_s,
        questions=questions,
        new_for=new_for,
        memory=memory,
    )


async def serve_streams(
    connect: Connect,
    endpoint: str,
    read_stream: Any,
    write_stream: Any,
    *,
    application: str | None = None,
    answer_within_s: float | None = None,
    questions: Literal["host", "inbox"] = "host",
    new_for: Sequence[str] = (),
    memory: Path | None = None,
    line_for: Callable[[str], str] = "mcp-tasks answer {}".format,
) -> None:
    """Serve one connection of a host, over a client that ``connect`` makes. Otherwise as :func:`bridge`."""
    if questions not in ("host", "inbox"):
        raise ValueError(f'questions must be "host" or "inbox", got {questions!r}')
    if answer_within_s is not None and not answer_within_s >= 0:
        raise ValueError(f"answer_within_s must be 0 seconds or more, got {answer_within_s}")
    sent = _Sent(write_stream)
    async with anyio.create_task_group() as group:
        front = Front(
            connect,
            Introduction(memory, endpoint),
            group,
            application=application,
            asks_host=questions == "host",
            is_new=lambda tool: any(fnmatchcase(tool, pattern) for pattern in new_for),
            answer_within=lambda host: (
                default_answer_within(host) if answer_within_s is None else answer_within_s
            ),
            line_for=line_for,
            when_sent=sent.when_sent,
        )
        try:
            await front.server.run(read_stream, sent, front.server.create_initialization_options())
        finally:
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await front.aclose()


class _Sent:
    """A stream of messages to a host that tells when a reply has left."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._told: dict[RequestId, Callable[[], None]] = {}

    def when_sent(self, request_id: RequestId | None, tell: Callable[[], None]) -> None:
        """Have a function called once the reply to a request has left."""
        if request_id is not None:
            self._told[request_id] = tell

    async def send(self, item: Any) -> None:
        """Send a message."""
        request_id = replied_id(item)
        tell = None if request_id is None else self._told.pop(request_id, None)
        await self._inner.send(item)
        if tell is not None:
            tell()

    async def aclose(self) -> None:
        """Send no more."""
        await self._inner.aclose()

    async def __aenter__(self) -> _Sent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
