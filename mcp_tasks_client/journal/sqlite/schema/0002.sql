-- Version 2: who drives what, and what is old.
--
-- An owner of records is one client; a lease stands for its whole process, and is what is renewed.
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

CREATE INDEX records_by_owner ON records (owner) WHERE owner IS NOT NULL;

CREATE INDEX records_delivered ON records (delivered_at) WHERE delivered_at IS NOT NULL;
