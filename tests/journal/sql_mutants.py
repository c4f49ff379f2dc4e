"""The statements of the journals with one of their guards broken: what their tests have to notice.

Each mutant is a change of one statement. ``conftest.py`` makes the one that the variable
``MCP_TASKS_TEST_MUTANT`` names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from mcp_tasks_client.journal.row import CHANGING, Row
from mcp_tasks_client.journal.statements import texts

__all__ = ["MUTANTS", "Mutant", "broken", "mutants_of"]


class Mutant(NamedTuple):
    """One change."""

    statement: str
    old: str
    new: str = ""


_STORED: Final = (*Row._fields, "scope", "key")
_MAY_BE_NULL: Final = (
    *("tool", "arguments_digest", "idempotency_key", "key", "owner", "delivered_at"),
    *("task_id", "due_at", "expires_at", "label", "application", "origin"),
)


def _assign(source: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{name} = {source}.{name}" for name in columns)


def _leave_out(column: str, value: str = "NULL") -> str:
    """The columns of a record, one of which gets a value that was not given."""
    return ", ".join(f"{value} AS {name}" if name == column else name for name in _STORED)


_LEFT_OUT: Final[dict[str, Mutant]] = {
    **{
        f"a save of a known record leaves {column} as it was": Mutant(
            "save_known", "{changes}", _assign("given", [name for name in CHANGING if name != column])
        )
        for column in CHANGING
    },
    **{
        f"a save leaves {column} as it was": Mutant(
            "save", "{all_changes}", _assign("excluded", [name for name in changed if name != column])
        )
        for changed in [[name for name in _STORED if name not in ("record_id", "fence")]]
        for column in changed
    },
    **{
        f"{statement} leaves {column} out": Mutant(
            statement, "SELECT {columns}, scope, key", f"SELECT {_leave_out(column)}"
        )
        for statement in ("claim", "save", "copy_records")
        for column in _MAY_BE_NULL
    },
    **{
        f"{statement} stores no fence": Mutant(
            statement, "SELECT {columns}, scope, key", f"SELECT {_leave_out('fence', '0')}"
        )
        for statement in ("claim", "save", "copy_records")
    },
}
"""One for each column that a statement may leave out in silence. The others may not be NULL."""

MUTANTS: Final[dict[str, Mutant]] = {
    **_LEFT_OUT,
    "a transaction that was given up is committed late": Mutant("begin", " AND given_up < {:number}"),
    "whoever reconnects is told that nothing was committed": Mutant(
        "settle", "RETURNING committed >= {:number}", "RETURNING false"
    ),
    "whoever reconnects is told that all was committed": Mutant(
        "settle", "RETURNING committed >= {:number}", "RETURNING true"
    ),
    "of two claims under one key the second stands": Mutant("standing", " OR stored.key = given.key"),
    "a claim finds a record of another key": Mutant(
        "standing", "stored.record_id = given.record_id OR stored.key = given.key", "true"
    ),
    "a late owner saves": Mutant("save", "WHERE stored.fence = excluded.fence"),
    "a late owner saves what it knows": Mutant("save_known", " AND stored.fence = given.fence"),
    "a late owner heeds": Mutant("heed", " AND stored.fence = given.fence"),
    "whoever heeds one instruction heeds all": Mutant(
        "heed", " AND instruction.name = given.instruction_name"
    ),
    "what was heeded keeps its body": Mutant("heed", "body = given.instruction_body, "),
    "a late owner notes how long a task ran": Mutant("note_duration", " AND stored.fence = given.fence"),
    "how long a task ran is noted twice": Mutant("note_duration", "AND stored.due_at IS NOT NULL"),
    "how long nothing ran is noted": Mutant("note_duration", "given.took_s IS NOT NULL AND "),
    "a commit waits for what another process notes": Mutant("note_duration", "{unless_noting}"),
    "more tasks are noted than there are places": Mutant("note_duration", "place <= 50", "true"),
    "each task has a place of its own": Mutant(
        "note_duration", "last + place - (last + place) / 50 * 50", "last + place"
    ),
    "each commit begins with the first place": Mutant(
        "note_duration", "coalesce((SELECT max(number)", "0 * coalesce((SELECT max(number)"
    ),
    "the first tasks of a tool are the last": Mutant(
        "note_duration", "DO UPDATE SET number = excluded.number, took_s = excluded.took_s", "DO NOTHING"
    ),
    "a newer task has the number of an older one": Mutant("note_duration", "number = excluded.number, "),
    "a newer task took as long as an older one": Mutant("note_duration", ", took_s = excluded.took_s"),
    "how long each tool ran is told": Mutant("durations", "WHERE tool_key = {:tool_key}"),
    "how long tasks ran is told in any order": Mutant("durations", "ORDER BY number", "ORDER BY took_s"),
    "a late owner forgets what was delivered": Mutant(
        "forget_delivered",
        "(record_id, fence) IN (SELECT record_id, fence FROM",
        "record_id IN (SELECT record_id FROM",
    ),
    "a task is forgotten as if it were an outcome": Mutant("forget_delivered", "{has_outcome} AND "),
    "an outcome with a key is forgotten": Mutant("forget_delivered", " AND key IS NULL"),
    "a late owner delivers": Mutant("deliver", " AND stored.fence = given.fence"),
    "a task is delivered as if it were an outcome": Mutant("deliver", " AND {has_outcome}"),
    "an outcome with a key is kept no longer than one without": Mutant(
        "deliver", "CASE WHEN stored.key IS NULL THEN given.keep_until END", "given.keep_until"
    ),
    "what was delivered has an owner": Mutant("deliver", "owner = NULL, "),
    "a late owner removes": Mutant(
        "remove", "(record_id, fence) IN (SELECT record_id, fence FROM", "record_id IN (SELECT record_id FROM"
    ),
    "the task of another scope is found": Mutant("by_task_id", "scope = {:scope} AND "),
    "the oldest record of a task is found": Mutant(
        "by_task_id", "created_at DESC, sequence DESC", "sequence"
    ),
    "all is pending": Mutant("pending", " AND pending = 1"),
    "records come in the order in which they lie": Mutant("all", "ORDER BY created_at, sequence"),
    "of equal age the last comes first": Mutant("all", "created_at, sequence", "created_at, sequence DESC"),
    "everything asks": Mutant("asking", " AND stored.status IN ('input_required', 'gathering')"),
    "what asks comes in the order in which it lies": Mutant(
        "asking", "ORDER BY stored.created_at, ", "ORDER BY "
    ),
    "what was heeded is shown beside what asks": Mutant("asking", " AND instruction.heeded = 0"),
    "what nobody has left anything for asks nothing": Mutant("asking", "LEFT JOIN", "JOIN"),
    "what was left for others is shown beside what asks": Mutant(
        "asking", "instruction.record_id = stored.record_id AND"
    ),
    "what was left is shown in the order of its names": Mutant(
        "asking", "stored.sequence, instruction.sequence", "stored.sequence, instruction.name DESC"
    ),
    **{
        f"{name}, among the {'pending ' if 'pending' in statement else ''}last ones": Mutant(
            statement, old, new
        )
        for statement in ("latest", "latest_pending")
        for name, old, new in (
            ("a record comes twice", "(created_at, sequence) <", "(created_at, sequence) <="),
            ("a record of equal age is left out", "coalesce((", "0 * coalesce(("),
            ("what is as old as a time is older", ", 0))", ", 1000000000))"),
            ("the oldest come first", "DESC, sequence DESC", ", sequence"),
            ("of equal age the first is the last", "DESC, sequence DESC", "DESC, sequence"),
            ("more come than are wanted", "LIMIT {:limit}", ""),
            ("those at other servers come", "AND endpoint = coalesce({:endpoint}, endpoint) ", ""),
            ("those of other principals come", "AND principal = coalesce({:principal}, principal)", ""),
            ("those of other labels come", "= coalesce({:label}, label, '\\')", "= coalesce(label, '\\')"),
            (
                "those without a label have each label",
                "coalesce(label, '\\') =",
                "coalesce(label, {:label}, '\\') =",
            ),
            (
                "those of other applications come",
                "= coalesce({:application}, application",
                "= coalesce(application",
            ),
            (
                "those of no application are left out",
                "coalesce(application, {:application}",
                "coalesce(application",
            ),
        )
    },
    "what is not pending is among the pending last ones": Mutant("latest_pending", " AND pending = 1"),
    "what was delivered long ago is shown": Mutant(
        "delivered_since", "delivered_at >= {:delivered_since}", "delivered_at IS NOT NULL"
    ),
    "a lease is not renewed": Mutant(
        "renew",
        "DO UPDATE SET renewed_at = excluded.renewed_at, expires_at = excluded.expires_at",
        "DO NOTHING",
    ),
    "every lease is given up": Mutant("end_leases", "WHERE lease_id {in lease_ids}"),
    "no lease is given up": Mutant("end_leases", "WHERE", "WHERE false AND"),
    "an owner is covered by the leases of others": Mutant("leases", "WHERE", "WHERE false AND"),
    "who owns nothing owns": Mutant("owners", "WHERE owner IS NOT NULL"),
    "what was delivered is taken": Mutant("take", " AND delivered_at IS NULL"),
    "whoever wants a record has it": Mutant(
        "take", "AND (owner IS NULL OR owner = {:owner} OR owner {in gone})"
    ),
    "a taken record has its old fence": Mutant("take", ", fence = fence + 1"),
    "a record of another scope is taken": Mutant("free", "scope = {:scope} AND "),
    "what is not pending any more is taken": Mutant("take_free", " AND pending = 1"),
    "the record of another application is taken": Mutant(
        "free", "AND (application IS NULL OR application = {:application})"
    ),
    "the record of an owner who has come just now is taken": Mutant(
        "take_free", "AND (owner IS NULL OR owner {in gone})"
    ),
    "the records of who is gone are not found": Mutant("free", " OR owner {in gone}"),
    "the records of who is gone are left": Mutant("take_free", " OR owner {in gone}"),
    "what is to be left alone is taken": Mutant("free", "AND NOT (record_id {in leave})"),
    "the newest are taken first": Mutant("free", "ORDER BY created_at, sequence", "ORDER BY created_at DESC"),
    "more are taken than are wanted": Mutant("free", "LIMIT {:limit}"),
    "principals are found at every server": Mutant("principals", "endpoint = {:endpoint} AND "),
    "a principal without a pending record is found": Mutant("principals", " AND pending = 1"),
    "a principal is found by the record of another application": Mutant(
        "principals", "AND (application IS NULL OR application = {:application})"
    ),
    "a principal is found by a record that has an owner": Mutant(
        "principals", "AND (owner IS NULL OR owner {in gone})"
    ),
    "a principal is not found by a record of who is gone": Mutant("principals", " OR owner {in gone}"),
    "a principal is found once for each record": Mutant("principals", "DISTINCT "),
    "who takes waits for a record that another is taking": Mutant("take_free", "{skip_locked}"),
    "many that are taken have their old fences": Mutant("take_free", ", fence = fence + 1"),
    "whoever takes is given what others have": Mutant("mine", " AND owner = {:owner}"),
    "what was taken without hearing of it counts for no limit": Mutant("taken", "WHERE", "WHERE false AND"),
    "a task that is released is free": Mutant("release", "ELSE owner || '/left'", "ELSE NULL"),
    "an outcome that is released is not free": Mutant("release", "THEN NULL", "THEN owner"),
    "whoever leaves releases everything": Mutant("release", "WHERE owner {in owners}"),
    "leases are kept for ever": Mutant(
        "prune_leases", "leases WHERE expires_at", "leases WHERE false AND expires_at"
    ),
    "new leases are forgotten": Mutant("prune_leases", " WHERE expires_at < {:leases_before}"),
    "what was delivered is never forgotten": Mutant(
        "prune_delivered", "delivered_at < {:before} OR", "false OR"
    ),
    "what is kept after its delivery is never forgotten": Mutant(
        "prune_delivered", "expires_at < {:now} AND delivered_at IS NOT NULL", "false"
    ),
    "an outcome that nobody had is forgotten": Mutant("prune_delivered", " AND delivered_at IS NOT NULL"),
    "a task that somebody drives is forgotten": Mutant(
        "prune_expired", "AND (owner IS NULL OR owner {in gone})"
    ),
    "a task that has not expired is forgotten": Mutant("prune_expired", "expires_at < {:before} AND"),
    "a call that has ended takes instructions": Mutant(
        "instruct",
        "WHERE stored.delivered_at IS NULL AND NOT ({has_outcome})",
        "WHERE true",
    ),
    "a call that ends at the moment takes an instruction": Mutant("instruct", "{in_turn}"),
    "the last instruction of a name counts": Mutant(
        "instruct",
        "ON CONFLICT DO NOTHING",
        "ON CONFLICT (record_id, name) DO UPDATE SET body = excluded.body",
    ),
    "nobody else is told of an instruction": Mutant("instruct", "{notify}"),
    "nobody is told of the end of a call that is followed": Mutant("follow", "'\\follow'", "'other'"),
    "whoever follows has the driver heed it": Mutant("follow", "'', 0, 1", "'', 0, 0"),
    "a call that has ended is followed": Mutant(
        "follow", "WHERE stored.delivered_at IS NULL AND NOT ({has_outcome})"
    ),
    "what was heeded is to be heeded again": Mutant("instructions", " AND stored.heeded = 0"),
    "instructions come in the order of their names": Mutant(
        "instructions", "ORDER BY stored.sequence", "ORDER BY stored.name DESC"
    ),
    "a database is written while it is copied": Mutant("lock_all", "SHARE ROW EXCLUSIVE", "ACCESS SHARE"),
    "whoever listens is told of what was heeded": Mutant("instructed", "WHERE heeded = 0"),
}

_ABSENT: Final = ("{skip_locked}", "{in_turn}", "{notify}", "{unless_noting}", "place <= 50")
"""What SQLite has no need of."""


def mutants_of(dialect: str) -> list[str]:
    """The names of the mutants of a dialect, which is called like its folder."""
    known = texts(dialect)
    return [
        name
        for name, mutant in MUTANTS.items()
        if mutant.statement in known and not (dialect == "sqlite" and mutant.old in _ABSENT)
    ]


def broken(texts: Mapping[str, str], name: str) -> dict[str, str]:
    """The statements of a dialect with one of them broken, if the dialect has it."""
    mutant = MUTANTS[name]
    if mutant.statement not in texts:
        return dict(texts)
    assert texts[mutant.statement].count(mutant.old) == 1, name
    return {**texts, mutant.statement: texts[mutant.statement].replace(mutant.old, mutant.new)}
