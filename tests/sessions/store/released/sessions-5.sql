BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'sessile.sessions','m001_sessions_and_entries','2026-11-01 00:00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'sessile.sessions','m002_keepings','2026-11-01 00:00:00');
INSERT INTO "_sqlite_migrations" VALUES(3,'sessile.sessions','m003_conversations','2026-11-01 00:00:00');
INSERT INTO "_sqlite_migrations" VALUES(4,'sessile.sessions','m004_accounts','2026-11-01 00:00:00');
INSERT INTO "_sqlite_migrations" VALUES(5,'sessile.sessions','m005_clients','2026-11-01 00:00:00');
CREATE TABLE "accounts" (
   "entry_id" INTEGER PRIMARY KEY,
   "account" BLOB NOT NULL,
   "checksum" INTEGER NOT NULL
) STRICT;
INSERT INTO "accounts" VALUES(2,X'6163636F756E74',1655874346);
CREATE TABLE "answers" (
   "scope" TEXT,
   "request_id" TEXT,
   "request_digest" BLOB NOT NULL,
   "answer" BLOB NOT NULL,
   "created_at" REAL NOT NULL,
   "checksum" INTEGER NOT NULL,
   PRIMARY KEY ("scope", "request_id")
) STRICT;
INSERT INTO "answers" VALUES('ses_kept','r1',X'646967657374',X'616E73776572',4000000000.0,906955470);
CREATE TABLE "conversations" (
   "tenant" TEXT,
   "key" BLOB,
   "session_id" TEXT NOT NULL,
   "head_id" INTEGER NOT NULL,
   "head_used" INTEGER NOT NULL,
   "num_tokens" INTEGER NOT NULL,
   "num_turns" INTEGER NOT NULL,
   "used_at" REAL NOT NULL,
   "checksum" INTEGER NOT NULL,
   PRIMARY KEY ("tenant", "key")
) STRICT;
CREATE TABLE "entries" (
   "entry_id" INTEGER PRIMARY KEY,
   "parent_id" INTEGER,
   "parent_used" INTEGER,
   "kind" INTEGER NOT NULL,
   "start" INTEGER NOT NULL,
   "turn" INTEGER NOT NULL,
   "token_ids" BLOB NOT NULL,
   "messages" BLOB NOT NULL,
   "checksum" INTEGER NOT NULL
) STRICT;
INSERT INTO "entries" VALUES(1,NULL,NULL,1,0,0,X'0A0000000B0000000C000000',X'5B7B22726F6C65223A2275736572222C22636F6E74656E74223A2268656C6C6F227D5D',2959140217);
INSERT INTO "entries" VALUES(2,1,3,2,3,1,X'0D0000000E000000',X'5B5D',1886974724);
CREATE TABLE "inferred_sessions" (
   "session_id" TEXT PRIMARY KEY
) STRICT;
CREATE TABLE "keepings" (
   "session_id" TEXT PRIMARY KEY,
   "keeping" BLOB NOT NULL,
   "checksum" INTEGER NOT NULL
) STRICT;
INSERT INTO "keepings" VALUES('ses_kept',X'7B2270657273697374656E6365223A7B227768656E223A22616C77617973222C2269646C655F73223A6E756C6C7D7D',1165479085);
CREATE TABLE "responses" (
   "tenant" TEXT,
   "response_id" TEXT,
   "session_id" TEXT NOT NULL,
   "head_id" INTEGER NOT NULL,
   "head_used" INTEGER NOT NULL,
   "num_tokens" INTEGER NOT NULL,
   "num_turns" INTEGER NOT NULL,
   "key" BLOB NOT NULL,
   "body" BLOB NOT NULL,
   "created_at" REAL NOT NULL,
   "expires_at" REAL NOT NULL,
   "checksum" INTEGER NOT NULL,
   PRIMARY KEY ("tenant", "response_id")
) STRICT;
CREATE TABLE "session_clients" (
   "session_id" TEXT PRIMARY KEY,
   "tenant" TEXT NOT NULL,
   "client" TEXT NOT NULL,
   "checksum" INTEGER NOT NULL
) STRICT;
CREATE TABLE "sessions" (
   "session_id" TEXT PRIMARY KEY,
   "tenant" TEXT NOT NULL,
   "version" INTEGER NOT NULL,
   "state" TEXT NOT NULL,
   "head_id" INTEGER,
   "head_used" INTEGER,
   "num_tokens" INTEGER NOT NULL,
   "num_turns" INTEGER NOT NULL,
   "model" TEXT NOT NULL,
   "model_fingerprint" TEXT,
   "tokenizer_fingerprint" TEXT,
   "system" TEXT,
   "tools" BLOB NOT NULL,
   "parent_session_id" TEXT,
   "created_at" REAL,
   "updated_at" REAL,
   "checksum" INTEGER NOT NULL
) STRICT;
INSERT INTO "sessions" VALUES('ses_kept','acme',2,'open',2,2,5,1,'m','f','t','be good',X'5B5D',NULL,1.0,2.0,2228891121);
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE INDEX "sessions_by_tenant"
    ON "sessions" ("tenant", "state", "session_id");
CREATE INDEX "answers_by_age"
    ON "answers" ("created_at");
CREATE INDEX "entries_by_parent"
    ON "entries" ("parent_id");
CREATE INDEX "sessions_by_head"
    ON "sessions" ("head_id");
CREATE INDEX "conversations_by_age"
    ON "conversations" ("used_at");
CREATE INDEX "responses_by_end"
    ON "responses" ("expires_at");
CREATE INDEX "responses_by_session"
    ON "responses" ("session_id");
CREATE INDEX "sessions_by_client"
    ON "session_clients" ("tenant", "client");
COMMIT;
PRAGMA user_version = 5;
