-- What is kept beside claims. registry_rows has tenants (kind 1), consumers, keys,
-- findings and jobs: columns are what is searched and guarded, doc is the rest, as
-- JSON, so that a new field needs no migration. Deleted rows of kinds 1 to 3 stay as
-- tombstones. registry_meta is one row: every change counts its revision up, so
-- changes queue there, and their revisions are in the order of their commits.
-- registry_audit only grows; an entry is also the proof that its change was made.
-- A revision may be indexed though it grows: changes are rare and queue anyway.
-- COLLATE "C" is the order of bytes, which is CockroachDB's only one.
CREATE TABLE IF NOT EXISTS registry_meta (
  id       INT2        NOT NULL,
  revision INT8        NOT NULL,
  at       TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (id)
);

CREATE TABLE IF NOT EXISTS registry_rows (
  kind       INT2        NOT NULL CHECK (kind BETWEEN 1 AND 5),
  name       TEXT COLLATE "C"        NOT NULL,
  tenant_id  INT8        NOT NULL,
  version    INT8        NOT NULL,
  revision   INT8        NOT NULL,
  change_id  UUID        NOT NULL,
  created_at TIMESTAMPTZ NOT NULL,
  updated_at TIMESTAMPTZ NOT NULL,
  deleted    BOOL        NOT NULL,
  state      INT2        NOT NULL,
  label      TEXT COLLATE "C"        NOT NULL,
  doc        BYTEA       NOT NULL,
  PRIMARY KEY (kind, name)
);

CREATE INDEX IF NOT EXISTS registry_rows_revision_idx ON registry_rows (kind, revision);

CREATE INDEX IF NOT EXISTS registry_rows_label_idx ON registry_rows (kind, label);

CREATE INDEX IF NOT EXISTS registry_rows_tenant_idx ON registry_rows (kind, tenant_id, created_at, name);

CREATE INDEX IF NOT EXISTS registry_rows_created_idx ON registry_rows (kind, created_at, name);

CREATE TABLE IF NOT EXISTS registry_audit (
  change_id UUID        NOT NULL,
  n         INT2        NOT NULL,
  tenant_id INT8        NOT NULL,
  at        TIMESTAMPTZ NOT NULL,
  revision  INT8        NOT NULL,
  doc       BYTEA       NOT NULL,
  PRIMARY KEY (change_id, n)
);

CREATE INDEX IF NOT EXISTS registry_audit_tenant_idx ON registry_audit (tenant_id, at, revision, n);

CREATE INDEX IF NOT EXISTS registry_audit_at_idx ON registry_audit (at, revision, n);

CREATE TABLE IF NOT EXISTS registry_seen (
  key_id  TEXT COLLATE "C"        NOT NULL,
  seen_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (key_id)
);

CREATE TABLE IF NOT EXISTS registry_leases (
  name        TEXT COLLATE "C"        NOT NULL,
  owner       TEXT        NOT NULL,
  fence       INT8        NOT NULL,
  lease_until TIMESTAMPTZ NOT NULL,
  cursor      BYTEA       NOT NULL,
  PRIMARY KEY (name)
);
