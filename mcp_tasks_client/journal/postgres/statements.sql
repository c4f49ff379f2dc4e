-- The statements that only PostgreSQL has; the others are in ../statements.sql.

-- ── transactions ───────────────────────────────────────────────────────────────────────────────

-- name: enrol
-- A new writer. Writers of processes that were killed are forgotten; a process that comes back after so long enrols anew.
WITH old AS (DELETE FROM {schema}.writers WHERE at < clock_timestamp() - interval '7 days')
INSERT INTO {schema}.writers (writer_id) VALUES ({:writer_id})
RETURNING {now};

-- name: begin
-- The first statement of a transaction that writes. It divides by zero, so that nothing of the transaction is done,
-- if the transaction was given up or the writer is not enrolled: the statements after it are on their way already.
WITH mine AS (
  UPDATE {schema}.writers SET committed = {:number}, at = clock_timestamp()
  WHERE writer_id = {:writer_id} AND given_up < {:number}
  RETURNING 1
)
SELECT 1 / count(*), {now} FROM mine;

-- name: settle
-- Give a transaction up whose connection was cut, unless it was committed. Waits for one that is under way.
UPDATE {schema}.writers SET given_up = {:number}
WHERE writer_id = {:writer_id}
RETURNING committed >= {:number};

-- name: leave
DELETE FROM {schema}.writers WHERE writer_id = {:writer_id};

-- name: clock
SELECT {now};

-- ── owners ─────────────────────────────────────────────────────────────────────────────────────

-- name: taken
-- How many rows "take_free" has taken, for a process to which its reply was lost.
SELECT count(*) FROM {schema}.records WHERE record_id {in record_ids} AND owner = {:owner};

-- ── instructions ───────────────────────────────────────────────────────────────────────────────

-- name: follow
-- Have the end of calls told to the listeners; see the function forget_instructions. No driver has to heed it. The
-- name is none that a client could give: a backslash of theirs is doubled.
INSERT INTO {schema}.instructions (record_id, name, body, at, heeded)
SELECT stored.record_id, '\follow', '', 0, 1
FROM {given record_id} JOIN {schema}.records AS stored ON stored.record_id = given.record_id
WHERE stored.delivered_at IS NULL AND NOT ({has_outcome})
FOR SHARE OF stored
ON CONFLICT DO NOTHING;

-- ── copying a whole journal ────────────────────────────────────────────────────────────────────

-- name: lock_all
-- No other process writes until the end of the transaction.
LOCK TABLE {schema}.writers, {schema}.leases, {schema}.records, {schema}.instructions,
  {schema}.durations IN SHARE ROW EXCLUSIVE MODE;
