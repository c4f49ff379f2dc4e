-- A journal in PostgreSQL. journal/postgres/database.py makes it.
--
-- The columns of records, leases, instructions and durations are those of SQLite (journal/sqlite/schema.sql), and hold
-- the same text. Times are seconds since the epoch, by the clock of this database.

CREATE TABLE {schema}.meta (
  name  text NOT NULL PRIMARY KEY,
  value text NOT NULL
);

CREATE TABLE {schema}.records (
  sequence         bigint GENERATED ALWAYS AS IDENTITY,  -- order of arrival; decides between equal created_at
  record_id        text NOT NULL PRIMARY KEY,
  endpoint         text NOT NULL,
  principal        text NOT NULL,
  tool             text,
  arguments_digest text,
  idempotency_key  text,
  owner            text,
  fence            bigint NOT NULL,
  created_at       double precision NOT NULL,
  updated_at       double precision NOT NULL,
  delivered_at     double precision,
  state            text NOT NULL,     -- JSON; the next columns are drawn from it, to search by or to look at
  task_id          text,
  status           text NOT NULL,
  pending          smallint NOT NULL, -- 1: a task to observe, or an outcome not yet delivered
  due_at           double precision,  -- of a task to observe: when it is next polled
  expires_at       double precision,  -- see journal/sqlite/schema.sql
  label            text,
  application      text,
  origin           text,
  scope            uuid NOT NULL,     -- a digest of endpoint and principal, which may be too long for an index
  key              uuid               -- a digest of both and of the idempotency key
) WITH (fillfactor = 70);             -- room for the next version of a row beside it

CREATE UNIQUE INDEX records_by_key ON {schema}.records (key) WHERE key IS NOT NULL;

-- The last ones of a scope, or of all, without a sort.
CREATE INDEX records_by_scope ON {schema}.records (scope, created_at, sequence);
CREATE INDEX records_by_age ON {schema}.records (created_at, sequence);

-- Partial, so that a look costs as much as the pending records, and not as all.
CREATE INDEX records_pending ON {schema}.records (scope, created_at, sequence) WHERE pending = 1;
CREATE INDEX records_asking ON {schema}.records (scope, created_at)
  WHERE status IN ('input_required', 'gathering');

CREATE INDEX records_by_owner ON {schema}.records (owner) WHERE owner IS NOT NULL;

-- By hash, since a server's IDs may be of any length.
CREATE INDEX records_by_task ON {schema}.records USING hash (task_id) WHERE task_id IS NOT NULL;

CREATE INDEX records_delivered ON {schema}.records (delivered_at) WHERE delivered_at IS NOT NULL;
CREATE INDEX records_expiring ON {schema}.records (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE {schema}.leases (
  lease_id   text NOT NULL PRIMARY KEY,
  host       text NOT NULL,
  boot       text NOT NULL,
  pids       text NOT NULL,
  pid        bigint NOT NULL,
  started    double precision NOT NULL,
  renewed_at double precision NOT NULL,
  expires_at double precision NOT NULL
);

CREATE TABLE {schema}.instructions (
  sequence  bigint GENERATED ALWAYS AS IDENTITY,  -- order of arrival
  record_id text NOT NULL REFERENCES {schema}.records ON DELETE CASCADE,
  name      text NOT NULL,
  body      text NOT NULL,      -- JSON
  at        double precision NOT NULL,
  heeded    smallint NOT NULL,  -- 1: it is part of the record's state
  PRIMARY KEY (record_id, name)
);

CREATE INDEX instructions_unheeded ON {schema}.instructions (record_id) WHERE heeded = 0;

CREATE TABLE IF NOT EXISTS {schema}.durations (
  tool_key  uuid NOT NULL,      -- a digest of endpoint, principal and tool
  slot      smallint NOT NULL,  -- number modulo 50
  number    bigint NOT NULL,    -- of the tool: 1 is its first task
  endpoint  text NOT NULL,
  principal text NOT NULL,
  tool      text NOT NULL,
  took_s    double precision NOT NULL,
  PRIMARY KEY (tool_key, slot)
) WITH (fillfactor = 70);

-- A call that has ended needs none, and answers of persons are private. A client that follows the call has
-- left an instruction to tell of its end; no other commit pays for that, since NOTIFY has commits wait in a row.
CREATE FUNCTION {schema}.forget_instructions() RETURNS trigger LANGUAGE plpgsql AS $$
  DECLARE
    is_followed boolean;
  BEGIN
    WITH forgotten AS (DELETE FROM {schema}.instructions WHERE record_id = NEW.record_id RETURNING name)
    SELECT bool_or(name = '\follow') INTO is_followed FROM forgotten;
    IF is_followed THEN
      PERFORM pg_notify('{schema}', left(NEW.record_id, 1000));
    END IF;
    RETURN NULL;
  END
$$;

CREATE TRIGGER instructions_of_ended AFTER UPDATE OF state ON {schema}.records FOR EACH ROW
  WHEN (NEW.delivered_at IS NOT NULL OR (NEW.pending = 1 AND NEW.due_at IS NULL))
  EXECUTE FUNCTION {schema}.forget_instructions();

-- Pages and programs that show questions are told of new ones. A server asks seldom, and one transaction has one such
-- notification, however many calls ask in it.
CREATE FUNCTION {schema}.tell_of_question() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    PERFORM pg_notify('{schema}', '?');
    RETURN NULL;
  END
$$;

CREATE TRIGGER question_asked AFTER INSERT OR UPDATE OF state ON {schema}.records FOR EACH ROW
  WHEN (NEW.status IN ('input_required', 'gathering'))
  EXECUTE FUNCTION {schema}.tell_of_question();

-- The writers: one row for each process that has the journal open. It says which transactions were committed
-- and which were given up, for a process whose connection was cut at that moment.
CREATE TABLE {schema}.writers (
  writer_id uuid NOT NULL PRIMARY KEY,
  committed bigint NOT NULL DEFAULT 0,  -- the number of the last transaction that was
  given_up  bigint NOT NULL DEFAULT 0,  -- none up to this one can be committed
  at        timestamptz NOT NULL DEFAULT clock_timestamp()
);
