-- Version 4: whoever has the journal can leave instructions for whoever drives a call, and sees whose it is.

ALTER TABLE records ADD COLUMN label TEXT;        -- a short text for people
ALTER TABLE records ADD COLUMN application TEXT;  -- whose call it is; NULL is everybody's
ALTER TABLE records ADD COLUMN origin TEXT;       -- JSON: the process that made the call

-- Whoever answers looks for what is asked.
CREATE INDEX records_asking ON records (endpoint, principal, created_at)
  WHERE status IN ('input_required', 'gathering');

-- What whoever does not drive a call wants done about it: an answer, or its cancellation. One that was
-- heeded stays, without its body, since the first of a name is the one that counts.
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

-- A call that has ended needs none, and what persons have answered is private.
CREATE TRIGGER instructions_of_removed AFTER DELETE ON records BEGIN
  DELETE FROM instructions WHERE record_id = OLD.record_id;
END;

CREATE TRIGGER instructions_of_ended AFTER UPDATE OF state ON records
  WHEN NEW.delivered_at IS NOT NULL OR (NEW.pending = 1 AND NEW.due_at IS NULL) BEGIN
  DELETE FROM instructions WHERE record_id = NEW.record_id;
END;
