-- The statements that SQLite has in its own way; the others are in ../statements.sql.
--
-- CROSS: each given row looks up its record. SQLite would look through all that is pending.

-- name: forget_delivered
-- Outcomes without a key that hosts have received.
DELETE FROM {schema}.records WHERE sequence IN (
  SELECT stored.sequence FROM {given record_id, fence} CROSS JOIN {schema}.records AS stored
  WHERE stored.record_id = given.record_id AND stored.fence = given.fence
    AND +stored.pending = 1 AND stored.due_at IS NULL AND stored.key IS NULL);

-- name: remove
DELETE FROM {schema}.records WHERE sequence IN (
  SELECT stored.sequence FROM {given record_id, fence} CROSS JOIN {schema}.records AS stored
  WHERE stored.record_id = given.record_id AND stored.fence = given.fence);

-- name: delivered_since
-- By the index of the delivered records, and not by that of the scope.
SELECT {columns} FROM {schema}.records
WHERE +{in_scope} AND delivered_at >= {:delivered_since}
ORDER BY created_at, sequence;
