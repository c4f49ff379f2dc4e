"""The requirements of the package, the text that makes each of them, and the tests that show them.

The table has every MUST and SHOULD that the Tasks extension puts on clients or hosts, and every law of our
own. A test names the requirements that it shows with ``@requirement("<id>")``. A law has one such test,
whose name says the law. ``test_requirements.py`` holds the table against the tests in both directions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

SPEC: Final = "Tasks extension (2026-07-28)"
CORE: Final = "MCP 2026-07-28"
OLDER: Final = "Tasks (2025-11-25)"
LAW: Final = "ours"

TestT = TypeVar("TestT", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Requirement:
    """A behaviour, and who asks for it."""

    source: str
    behaviour: str
    untested: str = ""
    """The reason why there is no test. Empty if there is one."""


REQUIREMENTS: Final[dict[str, Requirement]] = {
    # ── the extension's text ──
    "capability:per-request": Requirement(
        f"{SPEC}, Capability Negotiation",
        "The client declares the extension in the capabilities of every request.",
    ),
    "create:either-result": Requirement(
        f"{SPEC}, Capability Negotiation",
        "A client MUST be prepared to handle either CallToolResult or CreateTaskResult.",
    ),
    "create:unsupported-request": Requirement(
        f"{SPEC}, Capability Negotiation",
        "CreateTaskResult in response to an unsupported request type MUST be an invalid response.",
    ),
    "methods:extensible": Requirement(
        f"{SPEC}, Supported Methods",
        "Implementations SHOULD be designed to accommodate additional request types.",
        untested="A property of the design: the machine and the session contract know no tool.",
    ),
    "poll:respect-interval": Requirement(
        f"{SPEC}, Task Polling", "Clients SHOULD respect the pollIntervalMs provided in responses."
    ),
    "poll:until-terminal": Requirement(
        f"{SPEC}, Task Polling",
        "Clients SHOULD continue polling until a terminal status or until invoking tasks/cancel.",
    ),
    "persist:task-ids": Requirement(
        f"{SPEC}, Task Polling", "Clients SHOULD persist task IDs to durable storage."
    ),
    "ttl:backstop": Requirement(
        f"{SPEC}, Task Polling", "Clients MAY treat the TTL as a backstop after which a task is unusable."
    ),
    "input:fulfil": Requirement(
        f"{SPEC}, Task Update Requests",
        "On input_required the client SHOULD fulfil the requests by sending tasks/update.",
    ),
    "update:continue-observing": Requirement(
        f"{SPEC}, Task Update Requests",
        "After tasks/update the client SHOULD continue observing until a terminal state.",
    ),
    "input:trust": Requirement(
        f"{SPEC}, Task Update Requests; Security Considerations",
        "Clients and hosts MUST treat each input request as the equivalent standalone request.",
    ),
    "input:dedupe": Requirement(
        f"{SPEC}, Task Update Requests",
        "Clients SHOULD deduplicate inputRequests keys across consecutive polls.",
    ),
    "input:answer-once": Requirement(
        f"{SPEC}, Task Update Requests",
        "Clients SHOULD track keys to avoid responding to requests more than once.",
    ),
    "update:outstanding-keys": Requirement(
        f"{SPEC}, Task Update Requests",
        "Each key of inputResponses MUST correspond to an inputRequest that the server surfaced.",
    ),
    "cancel:tasks-cancel": Requirement(
        f"{SPEC}, Task Cancellation", "notifications/cancelled MUST NOT be used for task cancellation."
    ),
    "headers:mcp-name": Requirement(
        f"{SPEC}, Streamable HTTP: Routing Headers",
        "For tasks/get, tasks/update and tasks/cancel the client MUST set Mcp-Name to params.taskId.",
    ),
    "headers:mcp-method": Requirement(
        f"{SPEC}, Streamable HTTP: Routing Headers", "Mcp-Method is the JSON-RPC method name."
    ),
    "mrtr:answers": Requirement(
        f"{CORE}, Multi Round-Trip Requests",
        "Input asked for by tools/call is answered by calling again with inputResponses and requestState.",
    ),
    "elicit:who-asks": Requirement(
        f"{CORE}, Elicitation", "The UI MUST make clear which server is requesting information."
    ),
    "elicit:refuse": Requirement(
        f"{CORE}, Elicitation", "Clients MUST provide clear decline and cancel options."
    ),
    "elicit:review": Requirement(
        f"{CORE}, Elicitation", "Users MUST be able to review and modify their responses before sending."
    ),
    "elicit:defaults": Requirement(
        f"{CORE}, Elicitation: Requested Schema", "Fields SHOULD be pre-populated with their defaults."
    ),
    "elicit:validate": Requirement(
        f"{CORE}, Elicitation: Form Mode Security",
        "Clients SHOULD validate all responses against the provided schema.",
    ),
    "elicit:url": Requirement(
        f"{CORE}, Elicitation: Safe URL Handling",
        "The full URL and its host MUST be shown before consent; it MUST NOT be opened or fetched unasked.",
    ),
    "elicit:suspicious-url": Requirement(
        f"{CORE}, Elicitation: Safe URL Handling",
        "Clients SHOULD warn of ambiguous or suspicious URLs, such as those with Punycode.",
    ),
    # ── the older text, for those who ask for tasks ──
    "2025:capability": Requirement(
        f"{OLDER}, Capability Negotiation",
        "Without capabilities.tasks.requests.tools.call a client MUST NOT ask for a task.",
    ),
    "2025:tool-support": Requirement(
        f"{OLDER}, Tool-Level Negotiation",
        "A tool without taskSupport MUST NOT be called as a task; one that requires it MUST be.",
    ),
    "2025:poll-interval": Requirement(
        f"{OLDER}, Getting Tasks", "Requestors SHOULD respect the pollInterval provided in responses."
    ),
    "2025:poll-on": Requirement(
        f"{OLDER}, Getting Tasks",
        "Requestors SHOULD continue polling until a terminal status or input_required.",
    ),
    "2025:result": Requirement(
        f"{OLDER}, Result Retrieval",
        "tasks/result gives exactly what the request would have returned, a result or an error.",
    ),
    "2025:failed": Requirement(
        f"{OLDER}, Task Execution Errors",
        "A failed task tells why in its statusMessage; a tool's isError is a result all the same.",
    ),
    "2025:notifications": Requirement(
        f"{OLDER}, Task Notifications",
        "Requestors MUST NOT rely on notifications/tasks/status, and SHOULD continue to poll.",
    ),
    "2025:input-required": Requirement(
        f"{OLDER}, Input Required Status",
        "On input_required the requestor SHOULD call tasks/result preemptively.",
    ),
    "2025:any-stream": Requirement(
        f"{OLDER}, Input Required Status",
        "Clients SHOULD expect messages on any SSE stream, the HTTP GET stream included.",
    ),
    "2025:marked-answers": Requirement(
        f"{OLDER}, Associating Task-Related Messages",
        "All messages related to a task MUST bear related-task in their _meta, answers included.",
    ),
    "2025:unmarked-requests": Requirement(
        f"{OLDER}, Associating Task-Related Messages",
        "Requestors SHOULD NOT include related-task in tasks/get, tasks/result and tasks/cancel.",
    ),
    "2025:cancel": Requirement(
        f"{OLDER}, Task Cancellation",
        "A cancellation of what is over is refused with -32602; the real outcome counts.",
    ),
    "2025:lost-session": Requirement(
        "MCP 2025-11-25, Streamable HTTP",
        "A client that gets 404 for its session ID MUST start a new session.",
    ),
    "2025:track": Requirement(
        f"{OLDER}, Audit and Logging",
        "Requestors SHOULD record the life of their tasks, and which operation each ID belongs to.",
    ),
    "2025:receive-capability": Requirement(
        f"{OLDER}, Capabilities",
        "Clients that support task-augmented requests MUST declare which, and only those.",
    ),
    "2025:receive-undeclared": Requirement(
        f"{OLDER}, Task Support and Handling",
        "A receiver MUST process an undeclared type of request normally, ignoring any task.",
    ),
    "2025:receive-at-once": Requirement(
        f"{OLDER}, Result Retrieval",
        "A receiver MUST answer with a CreateTaskResult, and SHOULD as soon as it has accepted the task.",
    ),
    "2025:receive-task-id": Requirement(
        f"{OLDER}, Task ID Requirements; Associating Task-Related Messages",
        "Task IDs MUST be the receiver's, unique, and unguessable; the taskId parameter MUST be what counts.",
    ),
    "2025:receive-lifecycle": Requirement(
        f"{OLDER}, Task Status Lifecycle",
        "Tasks MUST begin as working, move along valid paths only, and never leave a terminal status.",
    ),
    "2025:receive-ttl": Requirement(
        f"{OLDER}, TTL and Resource Management",
        "Receivers MUST tell createdAt, lastUpdatedAt and the actual ttl, and MAY delete a task after it.",
    ),
    "2025:receive-result": Requirement(
        f"{OLDER}, Result Retrieval",
        "tasks/result MUST block until the end, and MUST return what the request itself would have.",
    ),
    "2025:receive-marks": Requirement(
        f"{OLDER}, Associating Task-Related Messages",
        "tasks/result MUST carry related-task metadata; get, list, cancel and notifications SHOULD NOT.",
    ),
    "2025:receive-notifications": Requirement(
        f"{OLDER}, Task Notifications", "Receivers MAY send notifications/tasks/status, with the full task."
    ),
    "2025:receive-list": Requirement(
        f"{OLDER}, Task Listing",
        "tasks/list SHOULD page, MUST give a nextCursor for more, and list what get retrieves.",
    ),
    "2025:receive-cancel": Requirement(
        f"{OLDER}, Task Cancellation",
        "A cancel MUST be refused after the end, else done before the reply; the task MUST stay so.",
    ),
    "2025:receive-errors": Requirement(
        f"{OLDER}, Protocol Errors",
        "Unknown tasks, bad cursors and cancels after the end MUST be -32602, internal errors -32603.",
    ),
    "2025:receive-isolation": Requirement(
        f"{OLDER}, Task Isolation and Access Control",
        "Receivers MUST bind tasks to the requestor's context, in get, result, cancel and list.",
    ),
    "2025:receive-limits": Requirement(
        f"{OLDER}, Resource Management",
        "Receivers SHOULD limit and document concurrent tasks and ttl, and clean up promptly.",
    ),
    "2025:receive-pace": Requirement(
        f"{OLDER}, Task Isolation and Access Control; Audit and Logging",
        "Receivers SHOULD limit the rate of task operations, and watch for suspicious patterns.",
    ),
    "2025:receive-audit": Requirement(
        f"{OLDER}, Audit and Logging",
        "Receivers SHOULD log creation, completion and retrieval of tasks.",
    ),
    "2025:receive-words": Requirement(
        f"{OLDER}, Protocol Errors", "Receivers SHOULD tell the cause in the error's message."
    ),
    "2025:cancelled-is-gone": Requirement(
        f"{OLDER}, Task Cancellation",
        "Requestors SHOULD NOT rely on a cancelled task being kept for any time.",
    ),
    "2025:progress": Requirement(
        f"{OLDER}, Task Progress Notifications",
        "The progressToken of the request stays valid for the life of the task.",
    ),
    "2025:upgraded": Requirement(
        LAW, "A task of one generation is not looked for in the other: the error says what happened."
    ),
    # ── the laws ──
    "law:1": Requirement(LAW, "Commit, then act: what an action depends on is durable before the action."),
    "law:2": Requirement(LAW, "A task ID is never lost; tools/call is never repeated by itself."),
    "law:3": Requirement(LAW, "Nobody is asked twice, and an answer never differs from the first."),
    "law:4": Requirement(LAW, "The server sets the pace, across restarts as well."),
    "law:5": Requirement(LAW, "One owner at a time."),
    "law:6": Requirement(LAW, "The server's result is passed on unchanged, checked where a schema is known."),
    "law:7": Requirement(LAW, "Observation ends only by an end."),
    "law:8": Requirement(LAW, "Stopping to wait is not cancelling; nothing runs beyond the client's scope."),
    "law:9": Requirement(LAW, "A task ID is a credential."),
    "law:10": Requirement(LAW, "A task is no higher-trust channel: nothing is answered by default."),
    "law:11": Requirement(LAW, "What a server sends is bounded; what is beyond is a typed error."),
    "law:12": Requirement(
        LAW, "A mechanism is worth its reader.", untested="A reader decides. No test can measure it."
    ),
    "law:13": Requirement(LAW, "One of each in a process: one writer, one lease and one timer a file."),
    "law:14": Requirement(LAW, "What is unambiguous is understood; what may have run is not harmless."),
    "law:15": Requirement(LAW, "An outcome is not gone because it was passed on."),
    "law:16": Requirement(LAW, "Whoever waits can see why: the last failure, and since when."),
    "law:17": Requirement(LAW, "A call that a model repeats is not a second task where its host gave up."),
    "law:18": Requirement(LAW, "Foreign text is harmless where it is shown: in a terminal, a page, a log."),
}


def requirement(*ids: str) -> Callable[[TestT], TestT]:
    """Mark a test as one that shows these requirements.

    Raises:
        KeyError: One of them is not in the table.
    """
    for name in ids:
        REQUIREMENTS[name]
    return lambda test: test


@cache
def read_claims() -> dict[str, list[str]]:
    """The marked test functions by requirement, read from their source.

    A test is named by its file below ``tests`` and by its function: ``aio/test_uncut.py::test_it``.
    """
    tests, found = Path(__file__).parent, dict[str, list[str]]()
    for path in tests.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "requirement":
                    for name in ast.literal_eval(ast.List(elts=decorator.args, ctx=ast.Load())):
                        test = f"{path.relative_to(tests).as_posix()}::{node.name}"
                        found.setdefault(name, []).append(test)
    return found
