BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'sessile.sessions','m001_sessions_and_entries','2026-11-01 00:00:00');
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
COMMIT;
PRAGMA user_version = 1;
