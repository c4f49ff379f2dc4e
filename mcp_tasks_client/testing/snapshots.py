"""Snapshots of tasks, and a tool result, as servers write them."""

from __future__ import annotations

from typing import Any

from ..protocol import JSONObject
from ..protocol.task import Task

__all__ = ["cancelled", "completed", "failed", "input_required", "text_result", "working"]


def working(task_id: str, **fields: Any) -> JSONObject:
    """A snapshot in ``working``, and a creation result too. Fields in snake_case."""
    return _snapshot(task_id, "working", fields)


def input_required(task_id: str, requests: JSONObject, **fields: Any) -> JSONObject:
    """A snapshot with questions."""
    return _snapshot(task_id, "input_required", {"input_requests": requests, **fields})


def completed(task_id: str, result: JSONObject, **fields: Any) -> JSONObject:
    """A snapshot with a result."""
    return _snapshot(task_id, "completed", {"result": result, **fields})


def failed(task_id: str, code: int, message: str, data: Any = None, **fields: Any) -> JSONObject:
    """A snapshot with a JSON-RPC error."""
    error = {"code": code, "message": message, "data": data}
    return _snapshot(task_id, "failed", {"error": error, **fields})


def cancelled(task_id: str, **fields: Any) -> JSONObject:
    """A snapshot in ``cancelled``."""
    return _snapshot(task_id, "cancelled", fields)


def text_result(text: str, *, is_error: bool = False) -> JSONObject:
    """A tool result of one text."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _snapshot(task_id: str, status: str, fields: JSONObject) -> JSONObject:
    made = "2026-07-28T00:00:00Z"
    times = {"created_at": made, "last_updated_at": made, "ttl_ms": None}
    task = Task.model_validate({"task_id": task_id, "status": status, **times, **fields})
    return {"resultType": "task" if status == "working" else "complete", **task.to_wire()}
