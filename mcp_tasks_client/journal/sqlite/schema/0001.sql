-- Version 1 of a journal file. journal/sqlite/file.py runs the scripts of this folder in order.
--
-- Text that a server or a caller chose is plain ASCII here, everything else in it written as in a
-- Python string literal (an e with an acute accent is \xe9, a backslash is \\): some of it, such
-- as half a surrogate pair, has no form that SQLite could store. Equal texts stay equal, and
-- different ones different. Times are seconds since the epoch.

CREATE TABLE meta (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
);

CREATE TABLE records (
  sequence         INTEGER PRIMARY KEY,  -- order of arrival; decides between equal created_at
  record_id        TEXT    NOT NULL UNIQUE,
  endpoint         TEXT    NOT NULL,
  principal        TEXT    NOT NULL,
  tool             TEXT,
  arguments_digest TEXT,
  idempotency_key  TEXT,
  generation       TEXT    NOT NULL,
  owner            TEXT,
  fence            INTEGER NOT NULL,
  created_at       REAL    NOT NULL,
  updated_at       REAL    NOT NULL,
  delivered_at     REAL,
  state            TEXT    NOT NULL,     -- JSON; what follows is drawn from it, to search by or to look at
  task_id          TEXT,
  status           TEXT    NOT NULL,
  pending          INTEGER NOT NULL,     -- 1: a task to watch, or an outcome not yet delivered
  due_at           REAL                  -- of a task to watch: when it is next looked at
);

CREATE UNIQUE INDEX records_by_key ON records (endpoint, principal, idempotency_key)
  WHERE idempotency_key IS NOT NULL;

-- Partial, so that a restart costs what is pending and not what ever was.
CREATE INDEX records_pending ON records (endpoint, principal, created_at) WHERE pending = 1;

CREATE INDEX records_by_task ON records (endpoint, principal, task_id);
