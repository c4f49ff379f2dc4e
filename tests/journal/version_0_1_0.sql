-- A journal as version 0.1.0 wrote it (schema 2), with a row that cannot be read. For test_migration.py.
PRAGMA application_id = 1296257108;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
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
INSERT INTO "leases" VALUES('lease','host','boot','pids',4711,1.5,1000.0,1030.0);
CREATE TABLE meta (
  name  TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
);
INSERT INTO "meta" VALUES('opened_at','2026-07-28T00:00:00.000Z');
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
INSERT INTO "records" VALUES(1,'record-1','https://mcp.example/','alice','report','abababababababababababababababababababababababababababababababab','order-1','2026-07-28','lease/1',1,1001.0,1002.5,NULL,'{"kind":"calling","round":2,"gathered":null,"again":false,"memo":"where to look"}',NULL,'calling',0,NULL);
INSERT INTO "records" VALUES(2,'record-2','https://mcp.example/','alice','report',NULL,'order-2','2026-07-28',NULL,0,1002.0,1003.5,NULL,'{"kind":"gathering","round":1,"request_state":"server''s","questions":[{"key":"q","digest":"d","stage":"answered","request":{"method":"elicitation/create","params":{"request_state":"not ours","singly":true}},"answer":{"action":"accept"},"refusal":""}],"again":false}',NULL,'gathering',0,NULL);
INSERT INTO "records" VALUES(3,'record-3','https://mcp.example/','alice','report',NULL,'order-3','2025-11-25',NULL,0,1003.0,1004.5,NULL,'{"kind":"outcome_unknown","memo":"where to look"}',NULL,'outcome_unknown',0,NULL);
INSERT INTO "records" VALUES(4,'record-4','https://mcp.example/','alice','report',NULL,NULL,'2026-07-28','lease/1',7,1004.0,1005.5,NULL,'{"kind":"observing","task":{"taskId":"task-4","status":"input_required","createdAt":"2026-07-28T00:00:00Z","ttlMs":60000.0,"pollIntervalMs":500.0,"inputRequests":{"q":{"method":"elicitation/create","params":{"n":NaN}}},"vendor/extra":{"request_state":1}},"received_at":1004.25,"due_at":1005.0,"wait_s":0.5,"quiet_until":0.0,"quiet_s":0.0,"poll_interval_ms":500,"ttl_ms":60000,"request_state":"a session \ud83d","unchanged":3,"failures":0,"looks":0,"questions":[{"key":"q","digest":"d","stage":"answered","request":{"method":"elicitation/create","params":{"request_state":"not ours","singly":true}},"answer":{"action":"accept"},"refusal":""}],"singly":true,"cancel":"requested","reported":["x"]}','task-4','input_required',1,1005.0);
INSERT INTO "records" VALUES(5,'record-5','https://mcp.example/','alice','report',NULL,NULL,'',NULL,0,1005.0,1006.5,NULL,'{"kind":"observing","task":{"taskId":"task-5","status":"working"},"received_at":1005.25,"due_at":1006.0,"wait_s":0.0,"quiet_until":0.0,"quiet_s":0.0,"poll_interval_ms":null,"ttl_ms":null,"request_state":null,"unchanged":0,"failures":0,"looks":0,"questions":[],"singly":false,"cancel":"no","reported":[]}','task-5','working',1,1006.0);
INSERT INTO "records" VALUES(6,'record-6','https://mcp.example/','alice','report',NULL,'B\xfccher','2026-07-28',NULL,0,1006.0,1007.5,1010.0,'{"kind":"finished","outcome":{"kind":"completed","result":{"content":[],"memo":"the server''s","singly":1}},"task":{"taskId":"task-6","status":"completed"}}','task-6','completed',0,NULL);
INSERT INTO "records" VALUES(7,'record-7','https://mcp.example/','alice','report',NULL,NULL,'2026-07-28',NULL,0,1007.0,1008.5,NULL,'{"kind":"finished","outcome":{"kind":"gone","why":"expired","message":"gone"},"task":null}',NULL,'expired',1,NULL);
INSERT INTO "records" VALUES(8,'record-8','https://mcp.example/','alice','report',NULL,NULL,'2026-07-28',NULL,0,1008.0,1009.5,NULL,'{"kind": "observing", "request_state": ','task-8','working',1,2.0);
CREATE UNIQUE INDEX records_by_key ON records (endpoint, principal, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX records_pending ON records (endpoint, principal, created_at) WHERE pending = 1;
CREATE INDEX records_by_task ON records (endpoint, principal, task_id);
CREATE INDEX records_by_owner ON records (owner) WHERE owner IS NOT NULL;
CREATE INDEX records_delivered ON records (delivered_at) WHERE delivered_at IS NOT NULL;
COMMIT;
