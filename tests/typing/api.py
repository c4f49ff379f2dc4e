"""The public API as a host sees it. Only type-checked, never run: ``mypy --strict tests/typing/api.py``.

Wrong use is here too, with the error it must be rejected with. Strict mypy reports an ``ignore`` that
ignores nothing, so each of them also fails when the wrong use is accepted one day.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

import fastmcp
import httpx
import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolResult,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    EmptyResult,
    ErrorData,
    InitializeResult,
    ListRootsResult,
    ListToolsResult,
    PaginatedRequestParams,
    RequestParams,
    TextContent,
)

from mcp_tasks_client import (
    BlockingInbox,
    BlockingQuestion,
    BlockingTaskHandle,
    BlockingTasksClient,
    ConnectionLostError,
    CredentialRefusedError,
    Estimate,
    Examination,
    FernetCodec,
    FormError,
    IdempotencyConflictError,
    Inbox,
    InputContext,
    InputUnansweredError,
    Journal,
    JournalCodecError,
    JournalCorruptError,
    JournalError,
    JournalLockedError,
    JournalSchemaError,
    JournalUser,
    LastFailure,
    MemoryJournal,
    MissingCapabilityError,
    Origin,
    OutcomeUnknownError,
    PollPolicy,
    Question,
    ReceivePolicy,
    RemoteProtocolError,
    SessionError,
    SqliteJournal,
    StdioServer,
    Task,
    TaskCancelledError,
    TaskError,
    TaskExpiredError,
    TaskFailedError,
    TaskHandle,
    TaskNotFoundError,
    TaskRecord,
    TaskReference,
    TasksClient,
    TasksClientError,
    TasksExtension,
    TasksHttpTransport,
    TaskStatus,
    TasksTransport,
    ToolError,
    WaitTimeoutError,
    call_label,
    digest_arguments,
    idempotency_key,
    tasks_http_client,
    tasks_http_client_factory,
)
from mcp_tasks_client.errors import Handle
from mcp_tasks_client.estimate import format_span
from mcp_tasks_client.forms import Choice, Field, Form, Kind, Visit, read_form, read_pairs, read_url
from mcp_tasks_client.progress import CallLine, Progress, line_of, show_progress
from mcp_tasks_client.testing import ManualClock, ScriptedServer, ServerSession, scripted_client

URL = "http://127.0.0.1:8000/mcp"
YES = ElicitResult(action="accept")


async def ask_for_headers() -> dict[str, str]:
    return {"X-Tenant": "a"}


# ── making a client ───────────────────────────────────────────────────────────────────────────


def clients(session: ServerSession, journal: Journal, path: Path, http_client: httpx.AsyncClient) -> None:
    assert_type(TasksClient(URL), TasksClient)
    TasksClient(session)
    TasksClient(StdioServer("python", ["server.py"], env={"KEY": "v"}, cwd=path, start_timeout_s=10))
    StdioServer(["python", "server.py"])  # type: ignore[arg-type]
    TasksClient(URL, journal=None)
    TasksClient(URL, journal="tasks.sqlite3")
    TasksClient(URL, journal=path)
    TasksClient(URL, journal=journal)
    TasksClient(URL, journal=MemoryJournal())
    TasksClient(URL, journal=SqliteJournal())
    TasksClient(URL, journal=SqliteJournal("tasks.sqlite3"))
    TasksClient(URL, journal=SqliteJournal(path))
    TasksClient(URL, journal=SqliteJournal(path, codec=FernetCodec("key", b"older key")))
    TasksClient(URL, endpoint="shop", principal="alice", poll=PollPolicy(), on_abandon="detach")
    TasksClient(URL, poll=PollPolicy(wait_for_slot_s=60.0))
    TasksClient(URL, poll=PollPolicy.eager(), on_abandon="cancel")
    TasksClient(URL, receive=ReceivePolicy(max_working=4, max_ttl_ms=3_600_000))
    TasksClient(URL, http_client=http_client, headers={"X-Tenant": "a"}, auth=("user", "password"))
    TasksClient(URL, auth=httpx.BasicAuth("user", "password"))
    TasksClient(URL, task_preference="always", task_ttl_s=60)
    PollPolicy(longest_wait_s=60, polls_in_flight=4)
    PollPolicy(backstop_s=60)  # type: ignore[call-arg]  # gone since 0.2.0

    TasksClient()  # type: ignore[call-arg]
    TasksClient(server=3)  # type: ignore[arg-type]
    TasksClient(URL, MemoryJournal())  # type: ignore[call-arg]
    TasksClient(URL, journal=3)  # type: ignore[arg-type]
    TasksClient(URL, principal=3)  # type: ignore[arg-type]
    TasksClient(URL, task_preference="sometimes")  # type: ignore[arg-type]
    TasksClient(URL, on_abandon="explode")  # type: ignore[arg-type]
    TasksClient(URL, poll=1.0)  # type: ignore[arg-type]
    TasksClient(URL, receive=True)  # type: ignore[arg-type]
    TasksClient(URL, headers=["X-Tenant: a"])  # type: ignore[arg-type]
    TasksClient(URL, headers=lambda: {"X-Tenant": "a"})
    TasksClient(URL, headers=ask_for_headers)
    TasksClient(URL, protocol="2025-11-25")
    TasksClient(URL, protocol="2026-07-28")  # type: ignore[arg-type]
    TasksClient(URL, headers=lambda: ["X-Tenant: a"])  # type: ignore[arg-type]
    TasksClient(URL, callbacks=[])  # type: ignore[call-arg]


def clients_of_hosts(
    sdk: mcp.Client, session: mcp.ClientSession, fast: fastmcp.Client[Any], journal: Journal
) -> None:
    tasks = TasksExtension()
    assert_type(tasks, TasksExtension)
    mcp.Client(URL, extensions=[tasks])
    fastmcp.Client(URL, extensions=[tasks])
    TasksExtension(journal="tasks.sqlite3", endpoint="shop", principal="alice", on_abandon="cancel")
    TasksExtension(journal=journal, poll=PollPolicy.eager(), on_update=lambda task: None)
    TasksExtension(elicitation=elicit, sampling=sample, roots=lambda context: ListRootsResult(roots=[]))
    assert_type(TasksClient(sdk), TasksClient)
    TasksClient(fast, principal="alice")
    TasksClient(session, endpoint="shop", journal=journal)

    inner = streamable_http_client(URL, terminate_on_close=False)
    mcp.Client(TasksTransport(inner, endpoint="shop", journal=journal, session_id="an-id"))

    over_httpx = TasksHttpTransport(httpx.AsyncHTTPTransport(), journal=journal, elicitation=elicit)
    assert_type(over_httpx, TasksHttpTransport)
    httpx.AsyncClient(transport=over_httpx)
    over_httpx2 = TasksHttpTransport(httpx2.AsyncHTTPTransport(), endpoint="shop", principal="alice")
    streamable_http_client(URL, http_client=httpx2.AsyncClient(transport=over_httpx2))
    assert_type(tasks_http_client(), httpx2.AsyncClient)
    assert_type(tasks_http_client(library="httpx", journal=journal, http2=True), httpx.AsyncClient)
    assert_type(tasks_http_client_factory(library="httpx")(headers={"X-Tenant": "a"}), httpx.AsyncClient)
    assert_type(tasks_http_client_factory(principal="alice")(), httpx2.AsyncClient)
    assert_type(tasks_http_client_factory(application="payroll")(), httpx2.AsyncClient)
    with idempotency_key("order-42"), idempotency_key("order-42", on_unknown="resend"), call_label("of Ada"):
        pass

    TasksHttpTransport()  # type: ignore[call-arg]
    TasksHttpTransport(httpx.AsyncHTTPTransport(), on_abandon="explode")  # type: ignore[arg-type]
    tasks_http_client(library="requests")  # type: ignore[call-overload]
    idempotency_key(42)  # type: ignore[arg-type]
    call_label(42)  # type: ignore[arg-type]
    TasksExtension(application=7)  # type: ignore[arg-type]
    TasksExtension("tasks.sqlite3")  # type: ignore[call-arg]
    TasksExtension(on_abandon="explode")  # type: ignore[arg-type]
    TasksExtension(http_client=None)  # type: ignore[call-arg]


def policies() -> None:
    assert_type(PollPolicy.eager(), PollPolicy)
    policy = PollPolicy(floor_s=2, jitter=0.0, polls_in_flight=4)
    assert_type(policy.floor_s, float)
    assert_type(policy.polls_in_flight, int)

    PollPolicy(2.0)  # type: ignore[call-arg]
    PollPolicy(interval_s=2.0)  # type: ignore[call-arg]
    PollPolicy(floor_s="2")  # type: ignore[arg-type]
    policy.jitter = 0.5  # type: ignore[misc]


# ── callbacks ─────────────────────────────────────────────────────────────────────────────────


async def elicit(context: InputContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
    assert_type(context.tool, str | None)
    assert_type(context.key, str)
    assert_type(context.task, Task | None)
    if isinstance(params, ElicitRequestFormParams):
        assert_type(params.requested_schema, dict[str, Any])
        return ElicitResult(action="accept", content={"n": 3})
    assert_type(params.url, str)
    return ErrorData(code=-1, message="no browser here")


def elicit_plainly(context: InputContext, params: ElicitRequestParams) -> ElicitResult:
    return YES


async def sample(context: InputContext, params: CreateMessageRequestParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="hi"), model="m")


def sample_plainly(
    context: InputContext, params: CreateMessageRequestParams
) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
    return CreateMessageResultWithTools(role="assistant", content=[], model="m")


async def list_roots(context: InputContext) -> ListRootsResult | ErrorData:
    return ListRootsResult(roots=[])


def list_roots_plainly(context: InputContext) -> ListRootsResult:
    return ListRootsResult(roots=[])


async def list_roots_with_params(context: InputContext, params: RequestParams | None) -> ListRootsResult:
    return ListRootsResult(roots=[])


async def sdk_elicit(context: dict[str, Any], params: ElicitRequestParams) -> ElicitResult | ErrorData:
    """A callback that was written for the SDK, whose context is another one."""
    return YES


class Terminal:
    async def __call__(self, context: InputContext, params: ElicitRequestParams) -> ElicitResult:
        return YES

    def ask(self, context: InputContext, params: ElicitRequestParams) -> ElicitResult:
        return YES


async def elicit_in(language: str, context: InputContext, params: ElicitRequestParams) -> ElicitResult:
    return YES


async def elicit_forms_only(context: InputContext, params: ElicitRequestFormParams) -> ElicitResult:
    return YES


async def elicit_text(context: InputContext, params: ElicitRequestParams) -> str:
    return "yes"


def elicit_without_arguments() -> ElicitResult:
    return YES


def callbacks() -> None:
    TasksClient(URL, elicitation=elicit, sampling=sample, roots=list_roots)
    TasksClient(URL, elicitation=elicit_plainly, sampling=sample_plainly, roots=list_roots_plainly)
    TasksClient(URL, elicitation=sdk_elicit, roots=list_roots_with_params)
    TasksClient(URL, elicitation=Terminal())
    TasksClient(URL, elicitation=Terminal().ask)
    TasksClient(URL, elicitation=functools.partial(elicit_in, "en"))
    TasksClient(URL, elicitation=lambda context, params: YES)
    TasksClient(URL, elicitation=lambda context, params: elicit(context, params))

    TasksClient(URL, elicitation=elicit_forms_only)  # type: ignore[arg-type]
    TasksClient(URL, elicitation=elicit_text)  # type: ignore[arg-type]
    TasksClient(URL, elicitation=elicit_without_arguments)  # type: ignore[arg-type]
    TasksClient(URL, elicitation=sample)  # type: ignore[arg-type]
    TasksClient(URL, sampling=elicit)  # type: ignore[arg-type]
    TasksClient(URL, roots=elicit)  # type: ignore[arg-type]
    TasksClient(URL, elicitation="yes")  # type: ignore[arg-type]


# ── calling ───────────────────────────────────────────────────────────────────────────────────


async def tell(task: Task) -> None:
    print(task.status)


async def tell_progress(progress: float, total: float | None, message: str | None) -> None: ...


def tell_progress_plainly(progress: float, total: float | None, message: str | None) -> None: ...


def tell_plainly(task: Task) -> None:
    print(task.status)


async def store_end(record: TaskRecord, outcome: CallToolResult | TasksClientError) -> None:
    print(record.record_id, outcome)


def store_end_plainly(record: TaskRecord, outcome: CallToolResult | TasksClientError) -> None:
    print(record.record_id, outcome)


def tell_text(text: str) -> None:
    print(text)


async def calling(client: TasksClient, arguments: Mapping[str, object]) -> None:
    async with TasksClient(URL) as opened:
        assert_type(opened, TasksClient)
    with TasksClient(URL):  # type: ignore[attr-defined]
        pass

    assert_type(await client.call_tool("deploy"), CallToolResult)
    await client.call_tool("deploy", {"service": "web"})
    await client.call_tool("deploy", arguments, timeout=5, idempotency_key="order-42", meta={"k": 1})
    await client.call_tool("deploy", timeout=0.5, on_unknown="resend", on_update=tell, label="of Ada")
    await client.call_tool("deploy", on_update=tell_plainly)
    await client.call_tool("deploy", on_update=lambda task: print(task.status_message))

    await client.call_tool()  # type: ignore[call-arg]
    await client.call_tool(3)  # type: ignore[arg-type]
    await client.call_tool("deploy", ["web"])  # type: ignore[arg-type]
    await client.call_tool("deploy", {}, 5, tell_progress)
    await client.call_tool("deploy", progress_callback=tell_progress_plainly)
    await client.call_tool("deploy", read_timeout_seconds=timedelta(seconds=5))
    await client.call_tool("deploy", {}, "5")  # type: ignore[arg-type]
    await client.call_tool("deploy", {}, 5, tell)  # type: ignore[arg-type]
    assert_type(await client.initialize(), InitializeResult)
    assert_type(await client.list_tools("cursor"), ListToolsResult)
    assert_type(await client.list_tools(params=PaginatedRequestParams(cursor="cursor")), ListToolsResult)
    assert_type(await client.send_ping(), EmptyResult)
    TasksClient("http://127.0.0.1/mcp", on_notification=lambda method, params: None)
    TasksClient("http://127.0.0.1/mcp", on_notification=lambda params: None)  # type: ignore[arg-type, misc]
    assert_type(await client.request("resources/read", {"uri": "file:///a"}), dict[str, Any])
    await client.request("resources/list")
    await client.request("resources/list", params=["a"])  # type: ignore[arg-type]
    await client.call_tool("deploy", timeout="5")  # type: ignore[arg-type]
    await client.call_tool("deploy", idempotency_key=42)  # type: ignore[arg-type]
    await client.call_tool("deploy", on_unknown="ignore")  # type: ignore[arg-type]
    await client.call_tool("deploy", label=7)  # type: ignore[arg-type]
    assert_type(await client.call_tool("deploy", raise_on_error=True), CallToolResult)
    await client.call_tool("deploy", raise_on_error="yes")  # type: ignore[arg-type]
    await client.call_tool("deploy", on_update=tell_text)  # type: ignore[arg-type]
    client.call_tool("deploy").content  # type: ignore[attr-defined]  # noqa: B018  # the await is missing

    assert_type(await client.start_tool("deploy", {"service": "web"}), TaskHandle)
    await client.start_tool("deploy", idempotency_key="order-42", on_unknown="raise", meta={}, label="of Ada")
    await client.start_tool("deploy", record_id="0" * 32)
    await client.start_tool("deploy", timeout=5)  # type: ignore[call-arg]  # belongs to result()

    assert_type(await client.resume(), list[TaskHandle])
    assert_type(await client.records(), list[TaskRecord])
    assert_type(client.endpoint, str)
    assert_type(digest_arguments({"service": "web"}), str)
    assert_type(await client.estimate("build"), Estimate)
    assert_type(await client.records(pending=True), list[TaskRecord])
    assert_type(await client.prune(), int)
    await client.prune(older_than_s=3600)
    assert_type(await client.resume(delivered_within_s=60), list[TaskHandle])
    assert_type(client.adopt(), AsyncIterator[TaskHandle])
    async for handle in client.adopt(limit=5):
        assert_type(handle, TaskHandle)
    await client.deliver(store_end, limit=5, client_of={"ada": client}.get)
    await client.deliver(store_end_plainly)
    await client.deliver(tell_text)  # type: ignore[arg-type]
    await client.resume("task-1")  # type: ignore[call-arg, arg-type]
    await client.records(listed=True)  # type: ignore[call-arg]  # gone since 0.2.0


async def handles(client: TasksClient, reference: TaskReference) -> None:
    handle = await client.attach("task-1")
    assert_type(handle, TaskHandle)
    assert_type(await client.attach(reference, label="of Ada"), TaskHandle)
    assert_type(handle.label, str | None)
    assert_type(await client.attach(handle.reference), TaskHandle)
    await client.attach(handle)  # type: ignore[arg-type]
    await client.attach({"task_id": "task-1"})  # type: ignore[arg-type]

    assert_type(await handle, CallToolResult)
    assert_type(await handle.result(), CallToolResult)
    assert_type(await handle.result(5), CallToolResult)
    assert_type(await handle.result(timeout=0.5), CallToolResult)
    assert_type(await handle.result(5, timeout_excludes_questions=True), CallToolResult)
    assert_type(await handle.result(raise_on_error=True), CallToolResult)
    async with handle.outcome(raise_on_error=True) as outcome:
        assert_type(outcome, CallToolResult)
    assert_type(await handle.refresh(), Task)
    assert_type(await handle.estimate(), Estimate)
    async with handle.outcome(timeout=5) as outcome:
        assert_type(outcome, CallToolResult)
    with handle.outcome():  # type: ignore[attr-defined]
        pass
    await handle.acknowledge()
    await handle.acknowledge(keep=True)
    await client.acknowledge(handle, keep=True)
    await client.acknowledge((await client.records())[0])
    await client.acknowledge(handle.reference)  # type: ignore[arg-type]
    assert_type(handle.updates(), AsyncIterator[Task])
    async for task in handle.updates():
        assert_type(task, Task)
    for _ in handle.updates():  # type: ignore[attr-defined]
        pass
    await handle.result("5")  # type: ignore[arg-type]
    await handle.cancel()
    (await handle.cancel()).ok  # type: ignore[func-returns-value, attr-defined]  # noqa: B018

    assert_type(handle.last_failure, LastFailure | None)
    assert_type(handle.task_id, str | None)
    assert_type(handle.tool, str | None)
    assert_type(handle.task, Task | None)
    assert_type(handle.immediate_response, str | None)
    assert_type(handle.done, bool)
    assert_type(handle.reference, TaskReference)
    handle.done = True  # type: ignore[misc]
    assert_type(reference["endpoint"], str)
    assert_type(reference["principal"], str)
    assert_type(reference["record_id"], str)
    assert_type(reference["task_id"], str | None)
    assert_type(reference["tool"], str | None)
    reference["taskId"]  # type: ignore[typeddict-item]


# ── what is looked at ─────────────────────────────────────────────────────────────────────────


def tasks(task: Task) -> None:
    assert_type(task.task_id, str)
    assert_type(task.status, str)
    assert_type(task.status_message, str | None)
    assert_type(task.created_at, str | None)
    assert_type(task.last_updated_at, str | None)
    assert_type(task.ttl_ms, float | None)
    assert_type(task.poll_interval_ms, float | None)
    assert_type(task.input_requests, dict[str, Any] | None)
    assert_type(task.result, dict[str, Any] | None)
    assert_type(task.error, dict[str, Any] | None)
    assert_type(task.immediate_response, str | None)
    assert_type(task.model_extra, dict[str, Any] | None)
    assert_type(task.terminal, bool)
    status: TaskStatus = "working"
    status = "input_required"
    status = "pondering"  # type: ignore[assignment]
    print(status)


def records(record: TaskRecord) -> None:
    assert_type(record.record_id, str)
    assert_type(record.tool, str | None)
    assert_type(record.task, Task | None)
    assert_type(record.task_id, str | None)
    assert_type(record.status, str)
    assert_type(record.idempotency_key, str | None)
    assert_type(record.label, str | None)
    assert_type(record.application, str | None)
    assert_type(record.origin, Origin | None)
    assert_type(record.due_at, float | None)
    assert_type(record.created_at, float)
    assert_type(record.delivered_at, float | None)
    assert_type(record.last_failure, LastFailure | None)
    assert_type(record.finished, bool)
    assert_type(record.took_s, float | None)
    assert_type(record.ran_s(1.0), float)
    assert_type(record.pending, bool)
    record.tool = "other"  # type: ignore[misc]


async def inboxes(journal: Journal, path: Path, record: TaskRecord) -> None:
    async with Inbox(path, endpoint="one", principal="ada", application="payroll") as inbox:
        assert_type(inbox, Inbox)
        found = await inbox.records(endpoint="one", principal="ada", pending=True, label="lunch")
        assert_type(found, list[TaskRecord])
        await inbox.records(limit=50, before=record)
        await inbox.records(limit=50, before=record.created_at)
        await inbox.records(limit="50")  # type: ignore[arg-type]
        assert_type(await inbox.question("record-0123456789abcdef"), Question | None)
        assert_type(inbox.asked(endpoint="one", principal="ada", label="lunch"), AsyncIterator[Question])
        assert_type(inbox.ended(label="lunch"), AsyncIterator[TaskRecord])
        for question in await inbox.questions(endpoint="one", principal="ada", label="lunch"):
            assert_type(question, Question)
            await question.accept({"version": "1.2"})
            await inbox.answer(question.question_id, ElicitResult(action="decline"))
        await inbox.cancel(record)
        await inbox.acknowledge(record)
        assert_type(await inbox.is_driven(record), bool)
        assert_type(await inbox.estimate(record), Estimate)
        await inbox.estimate("build")  # type: ignore[arg-type]
        assert_type(await inbox.prune(60), int)
        await inbox.cancel("record")  # type: ignore[arg-type]
    Inbox()
    Inbox(journal)
    Inbox(journal, "ada")  # type: ignore[call-arg]


def forms(params: ElicitRequestFormParams, url: str, schema: dict[str, Any]) -> None:
    form = read_form(params)
    assert_type(form, Form)
    assert_type(form.fields, tuple[Field, ...])
    for field in form.fields:
        assert_type((field.kind, field.hint, field.default), tuple[Kind, str, str | None])
        assert_type(field.choices, tuple[Choice, ...])
        assert_type(field.show(field.read("1")), str)
        field.kind = "text"  # type: ignore[misc]
    try:
        assert_type(form.read({"port": "1"}), dict[str, Any])
    except FormError as error:
        assert_type(error.field, str | None)
    assert_type(form.show({"port": 1}), dict[str, str])
    assert_type(form.check(read_pairs(["port=1"], schema)), dict[str, Any])
    assert_type(read_url(url), Visit)
    assert_type(read_url(url).warnings, tuple[str, ...])
    read_form(schema)  # type: ignore[arg-type]


async def progress(handle: TaskHandle, record: TaskRecord) -> None:
    async with show_progress(handle, lambda now: line_of(record, now)) as shown:
        assert_type(shown, Progress)
        shown.add(handle)
        with shown.paused():
            pass
        assert_type(await handle.result(), CallToolResult)
    show_progress(stream=sys.stdout)
    line = line_of(record, 0.0)
    assert_type(line, CallLine)
    assert_type((line.title, line.state, line.elapsed, line.note), tuple[str, str, str, str])
    assert_type(format_span(60), str)
    line.note = "said"  # type: ignore[misc]
    show_progress(record)  # type: ignore[arg-type]
    with show_progress(handle):  # type: ignore[attr-defined]
        pass


def blocking_inboxes(path: Path, record: TaskRecord) -> None:
    with BlockingInbox(path, principal="ada") as inbox:
        assert_type(inbox, BlockingInbox)
        assert_type(inbox.records(pending=True), list[TaskRecord])
        assert_type(inbox.records(limit=50, before=record), list[TaskRecord])
        assert_type(inbox.asked(label="lunch"), Iterator[BlockingQuestion])
        assert_type(inbox.ended(), Iterator[TaskRecord])
        for question in inbox.questions(label="lunch"):
            assert_type(question, BlockingQuestion)
            assert_type(question.label, str | None)
            assert_type(question.accept({"version": "1.2"}), None)
            assert_type(inbox.question(question.question_id), BlockingQuestion | None)
        inbox.cancel(record)
        assert_type(inbox.is_driven(record), bool)
        assert_type(inbox.estimate(record), Estimate)
        assert_type(inbox.prune(), int)
    BlockingInbox(path, 3)  # type: ignore[call-arg, arg-type]


async def journals(journal: Journal) -> None:
    async with SqliteJournal() as opened:
        assert_type(opened, SqliteJournal)
    examined = await SqliteJournal().examine()
    assert_type(examined, Examination)
    assert_type(examined.users, tuple[JournalUser, ...])
    async with MemoryJournal() as forgetful:
        assert_type(forgetful, MemoryJournal)
    SqliteJournal(3)  # type: ignore[arg-type]
    MemoryJournal("tasks.sqlite3")  # type: ignore[call-arg, arg-type]
    Journal()  # type: ignore[abstract]


# ── errors ────────────────────────────────────────────────────────────────────────────────────


async def errors(client: TasksClient) -> None:
    try:
        await client.call_tool("deploy")
    except TaskFailedError as error:
        assert_type(error.code, int | None)
        assert_type(error.message, str)
        assert_type(error.data, Any)
        assert_type(error.status_message, str | None)
    except (TaskCancelledError, TaskExpiredError, TaskNotFoundError) as error:
        assert_type(error.handle, Handle | None)
    except WaitTimeoutError as error:
        as_timeout: TimeoutError = error
        print(as_timeout)
        if error.handle is not None:
            assert_type(await error.handle.result(), CallToolResult)
            assert_type(await client.attach(error.handle.reference), TaskHandle)
    except InputUnansweredError as error:
        assert_type(error.keys, tuple[str, ...])
        assert_type(error.declined, bool)
    except ToolError as error:
        assert_type(error.result, CallToolResult)
        assert_type(error.tool, str | None)
    except OutcomeUnknownError as error:
        assert_type(error.record, TaskRecord | None)
    except IdempotencyConflictError as error:
        assert_type(error.handle, Handle | None)
    except (ConnectionLostError, CredentialRefusedError) as error:
        as_session: SessionError = error
        print(as_session)
    except (RemoteProtocolError, MissingCapabilityError) as error:
        as_session = error
        print(as_session)
    except SessionError as error:
        assert_type(error.retryable, bool)
        assert_type(error.not_executed, bool)
        assert_type(error.code, int | None)
        assert_type(error.remote_message, str)
        assert_type(error.data, Any)
        assert_type(error.http_status, int | None)
        assert_type(error.retry_after_s, float | None)
    except (JournalLockedError, JournalCodecError, JournalCorruptError, JournalSchemaError) as error:
        as_journal: JournalError = error
        print(as_journal)
    except TaskError as error:
        error.code  # type: ignore[attr-defined]  # noqa: B018  # only of a failed task
    except TasksClientError as error:
        assert_type(error.handle, Handle | None)
        await error.handle.result()  # type: ignore[union-attr]  # there may be no task yet


# ── without an event loop ─────────────────────────────────────────────────────────────────────


def estimates(estimate: Estimate) -> None:
    assert_type(estimate.after(252.0), Estimate)
    assert_type(estimate.half_s, float | None)
    assert_type(estimate.nine_of_ten_s, float | None)
    assert_type(estimate.calls, int)
    assert_type(estimate.shorter, int)
    assert_type(estimate.text, str)
    estimate.elapsed_s = 3.0  # type: ignore[misc]


def blocking_calls(client: BlockingTasksClient, arguments: Mapping[str, object]) -> None:
    with client as opened:
        assert_type(opened, BlockingTasksClient)
    assert_type(client.call_tool("deploy"), CallToolResult)
    client.call_tool("deploy", arguments, timeout=5, idempotency_key="order-42", on_unknown="resend")
    client.call_tool("deploy", on_update=tell_plainly, meta={"k": 1}, raise_on_error=True)
    assert_type(client.start_tool("deploy", {"service": "web"}), BlockingTaskHandle)
    assert_type(client.resume(), list[BlockingTaskHandle])
    assert_type(client.adopt(limit=5), Iterator[BlockingTaskHandle])
    client.deliver(store_end_plainly, client_of={"ada": client}.get)
    assert_type(client.records(), list[TaskRecord])
    assert_type(client.estimate("build"), Estimate)

    client.call_tool()  # type: ignore[call-arg]
    client.call_tool("deploy", timeout="5")  # type: ignore[arg-type]
    client.call_tool("deploy", {}, "5")  # type: ignore[arg-type]
    assert_type(client.list_tools(), ListToolsResult)
    client.call_tool("deploy", on_unknown="ignore")  # type: ignore[arg-type]
    client.start_tool("deploy", record_id="0" * 32)
    client.start_tool("deploy", timeout=5)  # type: ignore[call-arg]
    client.resume("task-1")  # type: ignore[call-arg, arg-type]


def blocking_handles(client: BlockingTasksClient, reference: TaskReference) -> None:
    handle = client.attach(reference)
    assert_type(handle, BlockingTaskHandle)
    assert_type(client.attach("task-1"), BlockingTaskHandle)
    assert_type(handle.label, str | None)
    assert_type(handle.result(), CallToolResult)
    assert_type(handle.result(timeout=5), CallToolResult)
    assert_type(handle.result(raise_on_error=True), CallToolResult)
    assert_type(handle.refresh(), Task)
    with handle.outcome(timeout=5, raise_on_error=True) as outcome:
        assert_type(outcome, CallToolResult)
    handle.acknowledge(keep=True)
    assert_type(client.request("resources/read", {"uri": "file:///a"}), dict[str, Any])
    assert_type(handle.questions(), list[BlockingQuestion])
    assert_type(handle.estimate(), Estimate)
    assert_type(client.questions(), list[BlockingQuestion])
    client.acknowledge(client.records()[0], keep=True)
    assert_type(handle.updates(), Iterator[Task])
    for task in handle.updates():
        assert_type(task, Task)
    handle.cancel()
    assert_type(handle.task_id, str | None)
    assert_type(handle.tool, str | None)
    assert_type(handle.task, Task | None)
    assert_type(handle.done, bool)
    assert_type(handle.reference, TaskReference)

    handle.result("5")  # type: ignore[arg-type]
    handle.done = True  # type: ignore[misc]
    client.attach(handle)  # type: ignore[arg-type]


async def blocking_is_not_awaited(client: BlockingTasksClient, handle: BlockingTaskHandle) -> None:
    await client.call_tool("deploy")  # type: ignore[misc]
    await handle  # type: ignore[misc]
    async with client:  # type: ignore[attr-defined]
        pass


def blocking_clients(path: Path) -> None:
    assert_type(BlockingTasksClient(URL), BlockingTasksClient)
    BlockingTasksClient(URL, journal=path, elicitation=elicit_plainly, poll=PollPolicy.eager())
    BlockingTasksClient(URL, journal=MemoryJournal(), elicitation=elicit, on_abandon="cancel")

    BlockingTasksClient()  # type: ignore[call-arg]
    BlockingTasksClient(server=3)  # type: ignore[arg-type]
    BlockingTasksClient(URL, on_abandon="explode")  # type: ignore[arg-type]
    BlockingTasksClient(URL, backend="trio")  # type: ignore[call-arg]


# ── for the tests of hosts ────────────────────────────────────────────────────────────────────


async def a_hosts_own_test() -> None:
    clock = ManualClock()
    server = ScriptedServer(clock=clock)
    async with scripted_client(server.session(), journal=MemoryJournal()) as client:
        assert_type(client, TasksClient)
        await clock.advance(120)
    scripted_client(URL)  # type: ignore[arg-type]
