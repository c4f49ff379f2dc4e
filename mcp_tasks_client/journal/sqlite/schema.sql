-- A journal in SQLite. journal/sqlite/file.py makes it.
--
-- A text that a server or a caller chose is plain ASCII here, everything else in it written as in a Python string
-- literal (an e with an acute accent is \xe9, a backslash is \\): some of it, such as half a surrogate pair, has no
-- form that SQLite could store. Equal texts stay equal, and different ones different. Times are seconds since the
-- epoch.

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
  owner            TEXT,
  fence            INTEGER NOT NULL,
  created_at       REAL    NOT NULL,
  updated_at       REAL    NOT NULL,
  delivered_at     REAL,
  state            TEXT    NOT NULL,     -- JSON; the next columns repeat parts of it, to search by or to look at
  task_id          TEXT,
  status           TEXT    NOT NULL,
  pending          INTEGER NOT NULL,     -- 1: a task to observe, or an outcome not yet delivered
  due_at           REAL,                 -- of a task to observe: when it is next polled
  expires_at       REAL,                 -- of a task to observe: when its time-to-live has passed; of a delivered
                                         -- outcome without a key: until when it is kept; of a call that was asked
                                         -- before its task and never answered: when it was saved
  label            TEXT,                 -- a short text for people
  application      TEXT,                 -- the application whose call it is; NULL is any
  origin           TEXT,                 -- JSON: the process that made the call
  scope            TEXT    NOT NULL,     -- a digest of endpoint and principal
  key              TEXT                  -- a digest of both and of the idempotency key
);

CREATE UNIQUE INDEX records_by_key ON records (key) WHERE key IS NOT NULL;

-- The last ones of a scope, or of all, without a sort. For statements that say "sequence > 0", as is true of each row:
-- for others SQLite would rather go through all rows in this order than sort a few.
CREATE INDEX records_by_scope ON records (scope, created_at) WHERE sequence > 0;
CREATE INDEX records_by_age ON records (created_at) WHERE sequence > 0;

-- Partial, so that a restart costs as much as there is pending, however many records were delivered before.
CREATE INDEX records_pending ON records (scope, created_at) WHERE pending = 1;
CREATE INDEX records_asking ON records (scope, created_at) WHERE status IN ('input_required', 'gathering');

CREATE INDEX records_by_task ON records (scope, task_id);
CREATE INDEX records_by_owner ON records (owner) WHERE owner IS NOT NULL;
CREATE INDEX records_delivered ON records (delivered_at) WHERE delivered_at IS NOT NULL;
CREATE INDEX records_expiring ON records (expires_at) WHERE expires_at IS NOT NULL;

-- An owner of records is one client; a lease stands for its whole process, and is renewed.
-- The owners that it covers are called lease_id/1, lease_id/2 and so on.
CREATE TABLE leases (
  lease_id   TEXT NOT NULL PRIMARY KEY,
  host       TEXT NOT NULL,
  boot       TEXT NOT NULL,
  pids       TEXT NOT NULL,     -- the space that pid is a number in
  pid        INTEGER NOT NULL,
  started    REAL NOT NULL,     -- the process, by its operating system
  renewed_at REAL NOT NULL,
  expires_at REAL NOT NULL
);

-- Wishes about a call of clients that do not drive it: an answer, or its cancellation. A heeded instruction stays,
-- with a digest in place of its body, since the first of a name is the one that counts.
CREATE TABLE instructions (
  sequence  INTEGER PRIMARY KEY,  -- order of arrival
  record_id TEXT    NOT NULL,
  name      TEXT    NOT NULL,
  body      TEXT    NOT NULL,     -- JSON
  at        REAL    NOT NULL,
  heeded    INTEGER NOT NULL,     -- 1: it is part of the record's state
  UNIQUE (record_id, name)
);

CREATE INDEX instructions_unheeded ON instructions (record_id) WHERE heeded = 0;

-- How long the tasks of each tool ran that have completed last: at most 50 rows for a tool.
CREATE TABLE IF NOT EXISTS durations (
  tool_key  TEXT    NOT NULL,  -- a digest of endpoint, principal and tool
  slot      INTEGER NOT NULL,  -- number modulo 50
  number    INTEGER NOT NULL,  -- of the tool: 1 is its first task
  endpoint  TEXT    NOT NULL,
  principal TEXT    NOT NULL,
  tool      TEXT    NOT NULL,
  took_s    REAL    NOT NULL,
  PRIMARY KEY (tool_key, slot)
) WITHOUT ROWID;

-- A call that has ended needs no instructions, and the answers of persons in them are private.
CREATE TRIGGER instructions_of_removed AFTER DELETE ON records BEGIN
  DELETE FROM instructions WHERE record_id = OLD.record_id;
END;

CREATE TRIGGER instructions_of_ended AFTER UPDATE OF state ON records
  WHEN NEW.delivered_at IS NOT NULL OR (NEW.pending = 1 AND NEW.due_at IS NULL) BEGIN
  DELETE FROM instructions WHERE record_id = NEW.record_id;
END;
