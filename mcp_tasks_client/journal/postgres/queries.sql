-- Every statement that a journal in PostgreSQL runs once its tables are there. {schema} is the schema, and
-- {columns} are those of a record, in their order. %(rows)s is JSON: one object for each of the rows that are
-- written by one statement. Such a statement returns the record_id of each row that it changed.

-- ── transactions ───────────────────────────────────────────────────────────────────────────────

-- name: enrol
-- Somebody new writes.
INSERT INTO {schema}.writers (writer_id) VALUES (%(writer_id)s)
RETURNING extract(epoch FROM clock_timestamp())::double precision;

-- name: begin
-- The first statement of a transaction that writes. It divides by zero, so that nothing of the transaction is
-- done, if the transaction was given up or nobody knows the writer: what follows is on its way already.
WITH mine AS (
  UPDATE {schema}.writers SET committed = %(number)s, at = clock_timestamp()
  WHERE writer_id = %(writer_id)s AND given_up < %(number)s
  RETURNING 1
)
SELECT 1 / count(*), extract(epoch FROM clock_timestamp())::double precision FROM mine;

-- name: settle
-- Give a transaction up whose connection was cut, unless it was committed. Waits for one that is under way.
UPDATE {schema}.writers SET given_up = %(number)s
WHERE writer_id = %(writer_id)s
RETURNING committed >= %(number)s;

-- name: leave
DELETE FROM {schema}.writers WHERE writer_id = %(writer_id)s;

-- ── records ────────────────────────────────────────────────────────────────────────────────────

-- name: claim
-- New records, but those whose key is taken. What stands is read after it, by "standing".
INSERT INTO {schema}.records ({columns}, scope, key)
SELECT {columns}, scope, key
FROM json_populate_recordset(NULL::{schema}.records, %(rows)s::json) AS new
ORDER BY new.sequence
ON CONFLICT DO NOTHING;

-- name: standing
-- Without a key, or under another one, it can only be the very record.
SELECT given.record_id, {stored_columns}
FROM json_to_recordset(%(rows)s::json) AS given (record_id text, key uuid)
JOIN {schema}.records AS stored ON stored.record_id = given.record_id OR stored.key = given.key
ORDER BY stored.key IS NOT DISTINCT FROM given.key DESC;

-- name: save
-- Records as they now are, new or not, but those that were taken since.
INSERT INTO {schema}.records AS stored ({columns}, scope, key)
SELECT {columns}, scope, key
FROM json_populate_recordset(NULL::{schema}.records, %(rows)s::json) AS new
ORDER BY new.sequence
ON CONFLICT (record_id) DO UPDATE SET
  endpoint = excluded.endpoint, principal = excluded.principal, tool = excluded.tool,
  arguments_digest = excluded.arguments_digest, idempotency_key = excluded.idempotency_key,
  owner = excluded.owner, created_at = excluded.created_at, updated_at = excluded.updated_at,
  delivered_at = excluded.delivered_at, state = excluded.state, task_id = excluded.task_id,
  status = excluded.status, pending = excluded.pending, due_at = excluded.due_at,
  expires_at = excluded.expires_at, label = excluded.label, application = excluded.application,
  origin = excluded.origin, scope = excluded.scope, key = excluded.key
WHERE stored.fence = excluded.fence
RETURNING stored.record_id;

-- name: save_known
-- Likewise, of records that were stored before. What a record was made with stays as it is.
UPDATE {schema}.records AS stored SET
  owner = new.owner, updated_at = new.updated_at, delivered_at = new.delivered_at, state = new.state,
  task_id = new.task_id, status = new.status, pending = new.pending, due_at = new.due_at,
  expires_at = new.expires_at
FROM json_populate_recordset(NULL::{schema}.records, %(rows)s::json) AS new
WHERE stored.record_id = new.record_id AND stored.fence = new.fence
RETURNING stored.record_id;

-- name: heed
-- The instructions that these records have become by. After "save" or "save_known", of the same fence.
UPDATE {schema}.instructions SET body = '', heeded = 1
FROM json_to_recordset(%(rows)s::json) AS new (record_id text, fence bigint, heeded text)
JOIN {schema}.records AS stored ON stored.record_id = new.record_id AND stored.fence = new.fence
WHERE instructions.record_id = new.record_id AND instructions.name = new.heeded;

-- name: forget_delivered
-- Outcomes without a key that hosts have had.
DELETE FROM {schema}.records AS stored
USING json_to_recordset(%(rows)s::json) AS had (record_id text, fence bigint)
WHERE stored.record_id = had.record_id AND stored.fence = had.fence
  AND stored.pending = 1 AND stored.due_at IS NULL AND stored.key IS NULL;

-- name: deliver
-- Outcomes that hosts have had, and that are kept. The column expires_at says until when.
UPDATE {schema}.records AS stored SET
  delivered_at = had.at, updated_at = had.at, owner = NULL, pending = 0,
  expires_at = CASE WHEN stored.key IS NULL THEN had.keep_until END
FROM json_to_recordset(%(rows)s::json)
  AS had (record_id text, fence bigint, at double precision, keep_until double precision)
WHERE stored.record_id = had.record_id AND stored.fence = had.fence
  AND stored.pending = 1 AND stored.due_at IS NULL;

-- name: remove
DELETE FROM {schema}.records AS stored
USING json_to_recordset(%(rows)s::json) AS given (record_id text, fence bigint)
WHERE stored.record_id = given.record_id AND stored.fence = given.fence;

-- name: by_id
SELECT {columns} FROM {schema}.records WHERE record_id = %(record_id)s;

-- name: by_key
SELECT {columns} FROM {schema}.records WHERE key = %(key)s;

-- name: by_task_id
SELECT {columns} FROM {schema}.records
WHERE task_id = %(task_id)s AND scope = %(scope)s
ORDER BY created_at DESC, sequence DESC LIMIT 1;

-- name: all
SELECT {columns} FROM {schema}.records WHERE {in_scope} ORDER BY created_at, sequence;

-- name: pending
SELECT {columns} FROM {schema}.records WHERE {in_scope} AND pending = 1 ORDER BY created_at, sequence;

-- name: asking
SELECT {columns} FROM {schema}.records
WHERE {in_scope} AND status IN ('input_required', 'gathering')
ORDER BY created_at, sequence;

-- name: delivered_since
SELECT {columns} FROM {schema}.records
WHERE {in_scope} AND delivered_at >= %(delivered_since)s
ORDER BY created_at, sequence;

-- ── who drives what ────────────────────────────────────────────────────────────────────────────

-- name: lease
SELECT lease_id, expires_at FROM {schema}.leases
WHERE lease_id IN (SELECT lease_id FROM json_to_recordset(%(rows)s::json) AS given (lease_id text));

-- name: renew
INSERT INTO {schema}.leases ({lease_columns})
SELECT {lease_columns}
FROM json_populate_recordset(NULL::{schema}.leases, %(rows)s::json) AS new
ON CONFLICT (lease_id) DO UPDATE SET renewed_at = excluded.renewed_at, expires_at = excluded.expires_at;

-- name: end_leases
DELETE FROM {schema}.leases WHERE lease_id = ANY (%(lease_ids)s::text[]);

-- name: owners
-- All who own a record, and the leases that cover them.
SELECT owners.owner, {their_lease}
FROM (SELECT DISTINCT owner FROM {schema}.records WHERE owner IS NOT NULL) AS owners
CROSS JOIN {started}
LEFT JOIN {schema}.leases AS lease ON lease.lease_id = {schema}.lease_of(owners.owner);

-- name: owners_named
SELECT owners.owner, {their_lease}
FROM unnest(%(names)s::text[]) AS owners (owner)
CROSS JOIN {started}
LEFT JOIN {schema}.leases AS lease ON lease.lease_id = {schema}.lease_of(owners.owner);

-- name: take
WITH free AS (
  SELECT record_id, owner FROM {schema}.records
  WHERE record_id = %(record_id)s AND delivered_at IS NULL
    AND (owner IS NULL OR owner = %(owner)s::text OR owner = ANY (%(gone)s::text[]))
  FOR UPDATE
)
UPDATE {schema}.records AS stored SET owner = %(owner)s::text, fence = fence + 1
FROM free WHERE stored.record_id = free.record_id
RETURNING free.owner, {stored_columns};

-- name: free
-- What is pending and free, and may be taken.
SELECT {columns} FROM {schema}.records
WHERE scope = %(scope)s AND pending = 1
  AND (application IS NULL OR application = %(application)s::text)
  AND (owner IS NULL OR owner = ANY (%(gone)s::text[]))
  AND record_id <> ALL (%(leave)s::text[])
ORDER BY created_at, sequence
LIMIT %(limit)s::bigint;

-- name: take_free
-- Of these whatever is free still. What another one is about to take is passed over.
WITH free AS (
  SELECT record_id, owner FROM {schema}.records
  WHERE record_id = ANY (%(record_ids)s::text[]) AND pending = 1
    AND (owner IS NULL OR owner = ANY (%(gone)s::text[]))
  ORDER BY record_id
  FOR UPDATE SKIP LOCKED
)
UPDATE {schema}.records AS stored SET owner = %(owner)s::text, fence = fence + 1
FROM free WHERE stored.record_id = free.record_id
RETURNING stored.record_id, free.owner;

-- name: taken
SELECT record_id, owner FROM {schema}.records
WHERE record_id = ANY (%(record_ids)s::text[]) AND owner = %(owner)s::text;

-- name: mine
SELECT {columns} FROM {schema}.records
WHERE scope = %(scope)s AND pending = 1 AND owner = %(owner)s::text
  AND (application IS NULL OR application = %(application)s::text)
ORDER BY created_at, sequence;

-- name: release
UPDATE {schema}.records SET
  owner = CASE WHEN pending = 1 AND due_at IS NULL THEN NULL ELSE owner || '/left' END
WHERE owner = ANY (%(owners)s::text[]);

-- ── forgetting what is old ─────────────────────────────────────────────────────────────────────

-- name: prune_leases
DELETE FROM {schema}.leases WHERE expires_at < %(leases_before)s;

-- name: prune_writers
-- Of processes that were killed. One that comes back after so long enrols anew.
DELETE FROM {schema}.writers WHERE at < clock_timestamp() - interval '7 days';

-- name: prune_delivered
WITH old AS (
  DELETE FROM {schema}.records WHERE record_id IN (
    SELECT record_id FROM {schema}.records
    WHERE delivered_at < %(before)s OR (expires_at < %(now)s AND delivered_at IS NOT NULL)
    LIMIT 5000 FOR UPDATE SKIP LOCKED)
  RETURNING 1
)
SELECT count(*) FROM old;

-- name: prune_expired
WITH old AS (
  DELETE FROM {schema}.records WHERE record_id IN (
    SELECT record_id FROM {schema}.records
    WHERE expires_at < %(before)s AND delivered_at IS NULL
      AND (owner IS NULL OR owner = ANY (%(gone)s::text[]))
    LIMIT 5000 FOR UPDATE SKIP LOCKED)
  RETURNING 1
)
SELECT count(*) FROM old;

-- ── instructions ───────────────────────────────────────────────────────────────────────────────

-- name: instruct
-- Of each name the first, where the record is there and has not ended. FOR SHARE: it does not end meanwhile.
-- Whoever listens is told when the transaction is committed.
WITH new AS (
  INSERT INTO {schema}.instructions (record_id, name, body, at, heeded)
  SELECT stored.record_id, given.name, given.body, given.at, 0
  FROM json_to_recordset(%(rows)s::json)
    AS given (record_id text, name text, body text, at double precision)
  JOIN {schema}.records AS stored ON stored.record_id = given.record_id
  WHERE stored.delivered_at IS NULL AND NOT (stored.pending = 1 AND stored.due_at IS NULL)
  FOR SHARE OF stored
  ON CONFLICT DO NOTHING
  RETURNING record_id
)
SELECT record_id, pg_notify('{channel}', left(record_id, 1000)) FROM new;

-- name: follow
-- Have the end of calls told to whoever listens; see the function forget_instructions. Nobody has to heed it.
INSERT INTO {schema}.instructions (record_id, name, body, at, heeded)
SELECT stored.record_id, 'follow', '', 0, 1
FROM json_to_recordset(%(rows)s::json) AS given (record_id text)
JOIN {schema}.records AS stored ON stored.record_id = given.record_id
WHERE stored.delivered_at IS NULL AND NOT (stored.pending = 1 AND stored.due_at IS NULL)
FOR SHARE OF stored
ON CONFLICT DO NOTHING;

-- name: instruction
SELECT record_id, stored.name, stored.body, stored.at, stored.heeded
FROM json_to_recordset(%(rows)s::json) AS given (record_id text, name text)
JOIN {schema}.instructions AS stored USING (record_id, name);

-- name: instructions
SELECT name, body, at, heeded FROM {schema}.instructions
WHERE record_id = %(record_id)s AND heeded = 0
ORDER BY sequence;

-- name: instructed
SELECT DISTINCT record_id FROM {schema}.instructions WHERE heeded = 0;

-- ── copying a whole journal ────────────────────────────────────────────────────────────────────

-- name: lock
-- Nobody else writes until the end of the transaction.
LOCK TABLE {schema}.writers, {schema}.leases, {schema}.records, {schema}.instructions
  IN SHARE ROW EXCLUSIVE MODE;

-- name: in_use
SELECT host, pid, expires_at - extract(epoch FROM clock_timestamp())::double precision
FROM {schema}.leases WHERE expires_at >= extract(epoch FROM clock_timestamp());

-- name: count
SELECT count(*) FROM {schema}.records;

-- name: all_records
SELECT {columns} FROM {schema}.records ORDER BY sequence;

-- name: all_instructions
SELECT record_id, name, body, at, heeded FROM {schema}.instructions ORDER BY sequence;

-- name: instruct_copied
INSERT INTO {schema}.instructions (record_id, name, body, at, heeded)
SELECT record_id, name, body, at, heeded
FROM json_to_recordset(%(rows)s::json)
  AS given (n bigint, record_id text, name text, body text, at double precision, heeded smallint)
ORDER BY n;
