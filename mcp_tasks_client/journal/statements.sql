-- The statements of every journal that is kept in a database. PostgreSQL has further ones in a file of its own.
--
-- Braces are filled in, by statements.py and by the dialect:
--   {schema}                 where the tables are
--   {columns}                the columns of a record, in their order; {stored_columns} are those of the table stored
--   {:name}                  a value
--   {in name}                is one of a list of texts
--   {given a, b}             the rows that one execution is about, as a table of these columns; {given *} has all
--                            columns of a record, and {given changing} those that a save may change
--   {in_scope}               of one scope; true for all scopes
--   {has_outcome}            the row stored is an outcome that no host has received: a task to observe has a due_at
--   {changed}                the statement tells which of the given rows it changed
--   {skip_locked}, {in_turn}, {unless_noting}  locks, in PostgreSQL
--   {notify}                 in PostgreSQL, tells the listeners of other processes, and returns rows
--   {their_lease}, {database_start}  leases, which last longer where the database was down
--   {now}                    the database's clock, in seconds since the epoch
--
-- A statement with given rows returns, if anything, the record_id of a given row first. "WHERE true": without it
-- SQLite cannot read an INSERT from a SELECT that goes on with ON CONFLICT. A percent sign is doubled.

-- ── records ────────────────────────────────────────────────────────────────────────────────────

-- name: claim
-- New records, except those whose key or record_id is taken. "standing" reads after it which record stands.
INSERT INTO {schema}.records ({columns}, scope, key)
SELECT {columns}, scope, key FROM {given *} WHERE true
ON CONFLICT DO NOTHING;

-- name: standing
-- A record without a key, or under another key, can only be the given record itself.
SELECT given.record_id, {stored_columns}
FROM {given record_id, key}
JOIN {schema}.records AS stored ON stored.record_id = given.record_id OR stored.key = given.key
ORDER BY CASE WHEN stored.key = given.key THEN 0 ELSE 1 END;

-- name: save
-- Records as they now are, new or not, except those that another owner has taken since. Here as below, the fence is
-- compared with the row itself, so that PostgreSQL compares it again once it has waited for the row.
INSERT INTO {schema}.records AS stored ({columns}, scope, key)
SELECT {columns}, scope, key FROM {given *} WHERE true
ON CONFLICT (record_id) DO UPDATE SET {all_changes}
WHERE stored.fence = excluded.fence
{changed};

-- name: save_known
-- Likewise, of records that were stored before. The columns that a record was made with stay as they are.
UPDATE {schema}.records AS stored SET {changes}
FROM {given changing}
WHERE stored.record_id = given.record_id AND stored.fence = given.fence
{changed};

-- name: heed
-- The instructions that are now part of the state of these records. After "save" or "save_known", of the same fence.
UPDATE {schema}.instructions AS instruction SET body = given.instruction_body, heeded = 1
FROM {given record_id, fence, instruction_name, instruction_body}
JOIN {schema}.records AS stored ON stored.record_id = given.record_id AND stored.fence = given.fence
WHERE instruction.record_id = given.record_id AND instruction.name = given.instruction_name;

-- name: note_duration
-- How long tasks ran whose results this transaction stores, each in one of 50 places of its tool, where the oldest was.
-- Before "save" or "save_known", since a stored record with a due_at says that its end is not stored yet. Of more tasks of
-- a tool than there are places 50 are noted: PostgreSQL writes no place twice. {unless_noting}: while another process notes
-- of the same tool, no commit waits, and nothing is noted.
INSERT INTO {schema}.durations (tool_key, slot, number, endpoint, principal, tool, took_s)
SELECT tool_key, last + place - (last + place) / 50 * 50, last + place, endpoint, principal, tool, took_s
FROM (
  SELECT given.tool_key, given.endpoint, given.principal, given.tool, given.took_s,
    row_number() OVER (PARTITION BY given.tool_key) AS place,
    coalesce((SELECT max(number) FROM {schema}.durations AS noted WHERE noted.tool_key = given.tool_key), 0) AS last
  FROM {given record_id, fence, tool_key, endpoint, principal, tool, took_s}
  JOIN {schema}.records AS stored ON stored.record_id = given.record_id AND stored.fence = given.fence
  WHERE given.took_s IS NOT NULL AND stored.due_at IS NOT NULL {unless_noting}
) AS fresh
WHERE place <= 50
ON CONFLICT (tool_key, slot) DO UPDATE SET number = excluded.number, took_s = excluded.took_s;

-- name: durations
SELECT took_s FROM {schema}.durations WHERE tool_key = {:tool_key} ORDER BY number;

-- name: forget_delivered
-- Outcomes without a key that hosts have received.
DELETE FROM {schema}.records AS stored
WHERE (record_id, fence) IN (SELECT record_id, fence FROM {given record_id, fence})
  AND {has_outcome} AND key IS NULL;

-- name: deliver
-- Outcomes that hosts have received, and that are kept. The column expires_at says until when.
UPDATE {schema}.records AS stored SET
  delivered_at = given.at, updated_at = given.at, owner = NULL, pending = 0,
  expires_at = CASE WHEN stored.key IS NULL THEN given.keep_until END
FROM {given record_id, fence, at, keep_until}
WHERE stored.record_id = given.record_id AND stored.fence = given.fence AND {has_outcome};

-- name: remove
DELETE FROM {schema}.records
WHERE (record_id, fence) IN (SELECT record_id, fence FROM {given record_id, fence});

-- name: by_id
SELECT given.record_id, {stored_columns}
FROM {given record_id} JOIN {schema}.records AS stored ON stored.record_id = given.record_id;

-- name: by_task_id
SELECT {columns} FROM {schema}.records
WHERE scope = {:scope} AND task_id = {:task_id}
ORDER BY created_at DESC, sequence DESC LIMIT 1;

-- name: all
SELECT {columns} FROM {schema}.records WHERE {in_scope} ORDER BY created_at, sequence;

-- name: pending
SELECT {columns} FROM {schema}.records WHERE {in_scope} AND pending = 1 ORDER BY created_at, sequence;

-- name: latest
-- The last ones first, of those before a place: a time, or a record, which may be gone. No sequence is below 1. A filter
-- that is NULL lets all pass. coalesce(…, '\') makes NULL comparable: no stored text is a single backslash. "sequence > 0"
-- is for an index of SQLite.
SELECT {columns} FROM {schema}.records
WHERE {in_scope} AND sequence > 0
  AND endpoint = coalesce({:endpoint}, endpoint) AND principal = coalesce({:principal}, principal)
  AND coalesce(label, '\') = coalesce({:label}, label, '\')
  AND coalesce(application, {:application}, '\') = coalesce({:application}, application, '\')
  AND (created_at, sequence) < (
    {:before_at}, coalesce((SELECT sequence FROM {schema}.records WHERE record_id = {:before_id}), 0))
ORDER BY created_at DESC, sequence DESC LIMIT {:limit};

-- name: latest_pending
SELECT {columns} FROM {schema}.records
WHERE {in_scope} AND pending = 1
  AND endpoint = coalesce({:endpoint}, endpoint) AND principal = coalesce({:principal}, principal)
  AND coalesce(label, '\') = coalesce({:label}, label, '\')
  AND coalesce(application, {:application}, '\') = coalesce({:application}, application, '\')
  AND (created_at, sequence) < (
    {:before_at}, coalesce((SELECT sequence FROM {schema}.records WHERE record_id = {:before_id}), 0))
ORDER BY created_at DESC, sequence DESC LIMIT {:limit};

-- name: asking
-- Each record once for each instruction that is to be heeded, and once if there is none.
SELECT {stored_columns}, instruction.name
FROM {schema}.records AS stored
LEFT JOIN {schema}.instructions AS instruction
  ON instruction.record_id = stored.record_id AND instruction.heeded = 0
WHERE {in_scope} AND stored.status IN ('input_required', 'gathering')
ORDER BY stored.created_at, stored.sequence, instruction.sequence;

-- name: delivered_since
-- IS TRUE: SQLite would look through all records of the scope.
SELECT {columns} FROM {schema}.records
WHERE ({in_scope}) IS TRUE AND delivered_at >= {:delivered_since}
ORDER BY created_at, sequence;

-- ── owners ─────────────────────────────────────────────────────────────────────────────────────

-- name: lease_until
SELECT given.lease_id, stored.expires_at
FROM {given lease_id} JOIN {schema}.leases AS stored ON stored.lease_id = given.lease_id;

-- name: renew
INSERT INTO {schema}.leases ({lease_columns})
SELECT {lease_columns} FROM {given lease_id, host, boot, pids, pid, started, renewed_at, expires_at} WHERE true
ON CONFLICT (lease_id) DO UPDATE SET renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
{unless_older};

-- name: end_leases
DELETE FROM {schema}.leases WHERE lease_id {in lease_ids};

-- name: leases
SELECT {their_lease} FROM {schema}.leases AS lease {database_start} WHERE lease.lease_id {in lease_ids};

-- name: owners
SELECT DISTINCT owner FROM {schema}.records WHERE owner IS NOT NULL;

-- name: owner_before
SELECT owner, fence FROM {schema}.records WHERE record_id = {:record_id};

-- name: take
UPDATE {schema}.records SET owner = {:owner}, fence = fence + 1
WHERE record_id = {:record_id} AND delivered_at IS NULL
  AND (owner IS NULL OR owner = {:owner} OR owner {in gone});

-- name: record
SELECT {columns} FROM {schema}.records WHERE record_id = {:record_id};

-- name: free
-- The records that are pending and free, and that this application may take. An owner keeps those that it has.
SELECT {columns} FROM {schema}.records
WHERE scope = {:scope} AND pending = 1
  AND (application IS NULL OR application = {:application})
  AND (owner IS NULL OR owner {in gone})
  AND NOT (record_id {in leave})
ORDER BY created_at, sequence
LIMIT {:limit};

-- name: principals
SELECT DISTINCT principal FROM {schema}.records
WHERE endpoint = {:endpoint} AND pending = 1
  AND (application IS NULL OR application = {:application})
  AND (owner IS NULL OR owner {in gone});

-- name: take_free
-- Of these records those that are still free. A record that another process is about to take is passed over.
UPDATE {schema}.records SET owner = {:owner}, fence = fence + 1
WHERE record_id IN (
  SELECT record_id FROM {schema}.records
  WHERE record_id {in record_ids} AND pending = 1 AND (owner IS NULL OR owner {in gone})
  ORDER BY record_id {skip_locked});

-- name: mine
SELECT {columns} FROM {schema}.records
WHERE scope = {:scope} AND pending = 1 AND owner = {:owner}
  AND (application IS NULL OR application = {:application})
ORDER BY created_at, sequence;

-- name: release
UPDATE {schema}.records AS stored SET owner = CASE WHEN {has_outcome} THEN NULL ELSE owner || '/left' END
WHERE owner {in owners};

-- ── forgetting old rows ────────────────────────────────────────────────────────────────────────

-- name: prune_leases
DELETE FROM {schema}.leases WHERE expires_at < {:leases_before};

-- name: prune_delivered
DELETE FROM {schema}.records WHERE record_id IN (
  SELECT record_id FROM {schema}.records
  WHERE delivered_at < {:before} OR (expires_at < {:now} AND delivered_at IS NOT NULL)
  LIMIT 5000 {skip_locked});

-- name: prune_expired
DELETE FROM {schema}.records WHERE record_id IN (
  SELECT record_id FROM {schema}.records
  WHERE expires_at < {:before} AND delivered_at IS NULL AND (owner IS NULL OR owner {in gone})
  LIMIT 5000 {skip_locked});

-- ── instructions ───────────────────────────────────────────────────────────────────────────────

-- name: instruct
-- Of each name the first, if the record is there and has not ended. {in_turn}: it does not end meanwhile, and
-- instructions of one record are numbered in the order of their commits.
INSERT INTO {schema}.instructions (record_id, name, body, at, heeded)
SELECT stored.record_id, given.name, given.body, given.at, 0
FROM {given record_id, name, body, at} JOIN {schema}.records AS stored ON stored.record_id = given.record_id
WHERE stored.delivered_at IS NULL AND NOT ({has_outcome})
{in_turn}
ON CONFLICT DO NOTHING
{notify};

-- name: instruction
SELECT given.record_id, stored.name, stored.body, stored.at, stored.heeded
FROM {given record_id, name}
JOIN {schema}.instructions AS stored ON stored.record_id = given.record_id AND stored.name = given.name;

-- name: instructions
SELECT given.record_id, stored.name, stored.body, stored.at, stored.heeded
FROM {given record_id}
JOIN {schema}.instructions AS stored ON stored.record_id = given.record_id AND stored.heeded = 0
ORDER BY stored.sequence;

-- name: instructed
SELECT DISTINCT record_id FROM {schema}.instructions WHERE heeded = 0;

-- ── copying a whole journal ────────────────────────────────────────────────────────────────────

-- name: in_use
SELECT host, pid, expires_at - {now} FROM {schema}.leases WHERE expires_at >= {now};

-- name: count
SELECT count(*) FROM {schema}.records;

-- name: all_records
SELECT {columns} FROM {schema}.records ORDER BY sequence;

-- name: all_instructions
SELECT record_id, name, body, at, heeded FROM {schema}.instructions ORDER BY sequence;

-- name: all_durations
SELECT tool_key, slot, number, endpoint, principal, tool, took_s FROM {schema}.durations;

-- name: copy_records
INSERT INTO {schema}.records ({columns}, scope, key)
SELECT {columns}, scope, key FROM {given *};

-- name: copy_instructions
INSERT INTO {schema}.instructions (record_id, name, body, at, heeded)
SELECT record_id, name, body, at, heeded FROM {given record_id, name, body, at, heeded};

-- name: copy_durations
INSERT INTO {schema}.durations (tool_key, slot, number, endpoint, principal, tool, took_s)
SELECT tool_key, slot, number, endpoint, principal, tool, took_s
FROM {given tool_key, slot, number, endpoint, principal, tool, took_s};
