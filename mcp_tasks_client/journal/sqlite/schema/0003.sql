-- Version 3: tasks that nobody came back for can be forgotten, and a record has no protocol version.
--
-- state_3() and expires_at_3() are functions of journal/sqlite/file.py. SQLite's own JSON functions
-- refuse states that hold a NaN, or are nested deeply.

ALTER TABLE records RENAME TO records_2;

CREATE TABLE records (
  sequence         INTEGER PRIMARY KEY,  -- order of arrival; decides between equal created_at
  record_id        TEXT    NOT NULL UNIQUE,
  endpoint         TEXT    NOT NULL,
  principal        TEXT    NOT NULL,
  tool             TEXT,
  arguments_digest TEXT,
  idempotency_key  TEXT,
  owner            TEXT,
  fence            INTEGER NOT NULL,
  created_at       REAL    NOT NULL,
  updated_at       REAL    NOT NULL,
  delivered_at     REAL,
  state            TEXT    NOT NULL,     -- JSON; what follows is drawn from it, to search by or to look at
  task_id          TEXT,
  status           TEXT    NOT NULL,
  pending          INTEGER NOT NULL,     -- 1: a task to observe, or an outcome not yet delivered
  due_at           REAL,                 -- of a task to observe: when it is next polled
  expires_at       REAL                  -- of a task to observe: when its time-to-live has passed
);

INSERT INTO records
  SELECT sequence, record_id, endpoint, principal, tool, arguments_digest, idempotency_key, owner, fence,
    created_at, updated_at, delivered_at, state_3(state), task_id, status, pending, due_at,
    expires_at_3(state)
  FROM records_2;

DROP TABLE records_2;  -- and its indexes

CREATE UNIQUE INDEX records_by_key ON records (endpoint, principal, idempotency_key)
  WHERE idempotency_key IS NOT NULL;

-- Partial, so that a restart costs what is pending and not what ever was.
CREATE INDEX records_pending ON records (endpoint, principal, created_at) WHERE pending = 1;

CREATE INDEX records_by_task ON records (endpoint, principal, task_id);

CREATE INDEX records_by_owner ON records (owner) WHERE owner IS NOT NULL;

CREATE INDEX records_delivered ON records (delivered_at) WHERE delivered_at IS NOT NULL;

CREATE INDEX records_expiring ON records (expires_at) WHERE expires_at IS NOT NULL;
