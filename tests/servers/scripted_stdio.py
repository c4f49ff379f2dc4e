"""A server over stdio that needs nothing but the standard library, so that it starts in milliseconds.

``python -I -S scripted_stdio.py VERSION [ODDITY...]`` speaks one version, ``2026-07-28`` or ``2025-11-25``.
Oddities:

- ``rubbish``: it prints lines that are no messages between those that are.
- ``mute``: it reads, and never answers.
- ``picky``: it ends when the first message is not ``initialize``, as servers made with rmcp do.
- ``stubborn``: it does not end when its stdin closes, nor on SIGTERM.
- ``broken``: it ends before it reads anything.

Tools: ``plain``; ``fast``, ``ask_name`` and ``cancelable``, which make tasks; ``pid``; ``die``, which ends
the process; ``wait``, which never answers; ``ask_plainly``, which asks without a task (2025-11-25 only);
``large``, whose result has ``bytes``; ``told``, which sends a progress notification and one of a changed list
of tools before it returns.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

VERSION, *ODDITIES = sys.argv[1:]
OLDER = VERSION == "2025-11-25"
RELATED = "io.modelcontextprotocol/related-task"
TASK_TOOLS = ("fast", "ask_name", "cancelable")
FORM = {"message": "Name?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}

tasks: dict[str, dict] = {}
results: dict[str, object] = {}
"""By task ID, the ``tasks/result`` that waits."""

asked_plainly: list[object] = []
"""The ``tools/call`` that wait for an answer."""


def send(**fields: object) -> None:
    if "rubbish" in ODDITIES:
        print('Loading model... 10%\n[1, 2]\n{}\n\x1b[2J\xff{"jsonrpc"', flush=True)
    print(json.dumps({"jsonrpc": "2.0", **fields}), flush=True)


def reply(request: dict, result: dict) -> None:
    send(id=request["id"], result=result if OLDER else {"resultType": "complete", **result})


def refuse(request: dict, code: int, message: str) -> None:
    send(id=request["id"], error={"code": code, "message": message})


def text(said: str) -> dict:
    return {"content": [{"type": "text", "text": said}]}


def snapshot(task: dict) -> dict:
    shown = {name: task[name] for name in ("taskId", "status")}
    times = {"createdAt": "2026-07-28T10:00:00Z", "lastUpdatedAt": "2026-07-28T10:00:00Z"}
    pace = {"ttl": 60_000, "pollInterval": 20} if OLDER else {"ttlMs": 60_000, "pollIntervalMs": 20}
    if not OLDER and task["status"] == "completed":
        shown["result"] = {**text(task["said"]), "resultType": "complete"}
    if not OLDER and task["status"] == "input_required":
        shown["inputRequests"] = {"k": {"method": "elicitation/create", "params": FORM}}
    return {**shown, **times, **pace}


def create(request: dict, tool: str) -> None:
    task_id = f"{tool}-{os.getpid()}-{len(tasks)}"
    tasks[task_id] = {"taskId": task_id, "tool": tool, "status": "working", "said": "done"}
    if tool == "ask_name":
        tasks[task_id]["status"] = "input_required"
    if OLDER:
        send(id=request["id"], result={"task": snapshot(tasks[task_id])})
    else:
        send(id=request["id"], result={"resultType": "task", **snapshot(tasks[task_id])})


def call(request: dict) -> None:
    params = request["params"]
    tool, arguments = params["name"], params.get("arguments", {})
    if tool in TASK_TOOLS:
        create(request, tool)
    elif tool == "die":
        print("one\ntwo\nthree\nout of memory", file=sys.stderr, flush=True)
        os._exit(3)
    elif tool == "ask_plainly":
        asked_plainly.append(request)
        send(id="q", method="elicitation/create", params=FORM)
    elif tool == "large":
        reply(request, text("x" * arguments["bytes"]))
    elif tool == "told":
        token = params["_meta"]["progressToken"]
        send(
            method="notifications/progress", params={"progressToken": token, "progress": 1, "message": "half"}
        )
        send(method="notifications/tools/list_changed")
        reply(request, text("told"))
    elif tool == "wait":
        pass  # for ever
    else:
        reply(request, {**text(str(os.getpid()) if tool == "pid" else "1"), "unknown": {"kept": True}})


def about_task(request: dict) -> None:
    task = tasks.get(request["params"]["taskId"])
    if task is None:
        refuse(request, -32602, "no such task")
        return
    match request["method"]:
        case "tasks/get":
            reply(request, snapshot(task))
            if task["tool"] == "fast":
                task["status"] = "completed"
        case "tasks/cancel":
            task["status"] = "cancelled"
            reply(request, snapshot(task) if OLDER else {})
        case "tasks/update":
            answer(task, request["params"]["inputResponses"]["k"])
            reply(request, {})
        case "tasks/result" if task["status"] == "completed":
            reply(request, text(task["said"]))
        case "tasks/result":
            results[task["taskId"]] = request
            meta = {RELATED: {"taskId": task["taskId"]}}
            send(id=task["taskId"], method="elicitation/create", params={**FORM, "_meta": meta})


def answer(task: dict, result: dict) -> None:
    task["said"] = f"Hello, {result['content']['name']}"
    task["status"] = "completed"


def take(message: dict) -> None:
    method = message.get("method")
    if "mute" in ODDITIES or (method is not None and "id" not in message):
        return
    match method:
        case None if message["id"] == "q":
            reply(asked_plainly.pop(), text(f"Hello, {message['result']['content']['name']}"))
        case None:
            answer(tasks[message["id"]], message["result"])
            reply(results.pop(message["id"]), text(tasks[message["id"]]["said"]))
        case "initialize" if OLDER:
            makes = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
            server = {"name": "scripted", "version": "1"}
            reply(
                message, {"protocolVersion": VERSION, "capabilities": {"tasks": makes}, "serverInfo": server}
            )
        case "server/discover" if not OLDER:
            capabilities = {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
            cached = {"ttlMs": 0, "cacheScope": "public"}
            reply(message, {"supportedVersions": [VERSION], "capabilities": capabilities, **cached})
        case "tools/list":
            names = (*TASK_TOOLS, "plain", "pid", "die", "ask_plainly", "large", "told", "wait")
            reply(message, {"tools": [listed(name) for name in names]})
        case "tools/call":
            call(message)
        case "ping":
            reply(message, {})
        case _ if method.startswith("tasks/"):
            about_task(message)
        case _:
            refuse(message, -32601, f"no such method: {method}")


def listed(name: str) -> dict:
    support = "required" if name in TASK_TOOLS else "forbidden"
    return {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}


def main() -> None:
    if "broken" in ODDITIES:
        sys.exit("no licence")
    if "stubborn" in ODDITIES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number, line in enumerate(sys.stdin):
        message = json.loads(line)
        if "picky" in ODDITIES and number == 0 and message.get("method") != "initialize":
            sys.exit("expected initialize")
        take(message)
    if "stubborn" in ODDITIES:
        time.sleep(300)  # a test that fails leaves it for no longer


if __name__ == "__main__":
    main()
