"""Durable tasks for hosts in any language: a server in front, behind which each call is one of ours.

``mcp-tasks bridge URL`` is the command of a host's MCP entry. The host speaks to the bridge as it does to any
server. The bridge calls the real server by a :class:`~mcp_tasks_client.TasksClient`, with a journal.
:func:`bridge` is the same for a program that has the streams of one connection.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import mcp_tasks_client as tasks

from .front import open_front
from .host_request import Reply
from .introspection import Context, Next, prepend_middleware, replied_id
from .options import Options
from .service import Connect

__all__ = ["Options", "bridge", "serve_streams"]


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
        journal: As of :class:`~mcp_tasks_client.TasksClient`.
        endpoint: Likewise.
        principal: Likewise.
        application: Names the calls in the journal. ``None`` is the name that the host gives itself.
        headers: As of :class:`~mcp_tasks_client.TasksClient`.
        http_client: Likewise.
        auth: Likewise.
        answer_within_s: Seconds after which a call that goes on is answered with a reference, by which the
            tool ``task_result`` has its result. 0 is never. ``None`` chooses by the host.
        questions: ``"host"`` puts the server's questions to the host, if it can be asked. ``"inbox"`` leaves
            them to persons who answer them elsewhere. These may answer in both cases, and the first answer
            counts.
        new_for: Tools of which each call is a new one, by name or pattern (``deploy_*``). A call of any other
            tool that repeats one without a waiting request joins it.
        memory: The folder for the introductions of servers; ``None`` keeps none.

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

    options = Options(
        application=application,
        answer_within_s=answer_within_s,
        questions=questions,
        new_for=new_for,
        memory=memory,
    )
    await serve_streams(connect, endpoint or server, read_stream, write_stream, options)


async def serve_streams(
    connect: Connect, endpoint: str, read_stream: Any, write_stream: Any, options: Options
) -> None:
    """Serve one connection of a host, over a client that ``connect`` makes. Otherwise as :func:`bridge`.

    Args:
        connect: Makes the client for one host.
        endpoint: Names the file of the server's introduction: any text that each bridge to the server gives.
        read_stream: As of :func:`bridge`.
        write_stream: Likewise.
        options: Of the bridge.
    """
    sent = _Sent(write_stream)
    async with open_front(connect, endpoint, options, sent.reply_to) as front:
        prepend_middleware(front.server, sent.until_taken_back)
        await front.server.run(read_stream, sent, front.server.create_initialization_options())


class _Sent:
    """A stream of messages to a host, which knows the replies that have not left."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._replies: dict[str, Reply] = {}

    def reply_to(self, context: Context) -> Reply:
        """The reply to a request; several requests of one ID have one."""
        return self._replies.setdefault(str(context.request_id), Reply())

    async def until_taken_back(self, context: Context, go_on: Next) -> Any:
        """Serve a message. A request that its host takes back gets no reply: the SDK sends none."""
        if context.method == "notifications/cancelled":
            reply = self._replies.pop(str((context.params or {}).get("requestId")), None)
            if reply is not None:
                reply.settle(False)
        return await go_on(context)

    async def send(self, item: Any) -> None:
        """Send a message."""
        request_id = replied_id(item)
        reply = None if request_id is None else self._replies.pop(str(request_id), None)
        has_left = False
        try:
            await self._inner.send(item)
            has_left = True
        finally:
            if reply is not None:
                reply.settle(has_left)

    async def aclose(self) -> None:
        """Send no more."""
        await self._inner.aclose()

    async def __aenter__(self) -> _Sent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
