-- Claims by key. shard is a hash of the key, so that keys that grow, as sequences
-- and time-ordered IDs do, are written in sixteen places and not in one; within a
-- shard keys are in the order in which they are listed.
-- expiry_shard is the same number again: an index that began with shard would be
-- taken for the primary key while the table is small, and kept when it is large.
-- Results above the inline limit have a table of their own: reading a claim does not
-- drag them along, and the fence in their key ties a body to its grant.
-- COLLATE "C" is the order of bytes, which is CockroachDB's only one. The fill factor
-- leaves room on a page for the completion of every claim on it: no index changes
-- then. At 60 half of them, and at 45 a fifth, found none when a whole page was
-- completed at once.
CREATE TABLE IF NOT EXISTS claims (
  shard             INT2        NOT NULL,
  tenant_id         INT8        NOT NULL,
  consumer          TEXT COLLATE "C"        NOT NULL,
  event_id          TEXT COLLATE "C"        NOT NULL,
  version           INT8        NOT NULL,
  state             INT2        NOT NULL CHECK (state BETWEEN 1 AND 5),
  takeover          INT2        NOT NULL,
  attempt           INT8        NOT NULL,
  attempt_id        UUID        NOT NULL,
  fence             INT8        NOT NULL,
  digests           BYTEA       NOT NULL,
  event_time        TIMESTAMPTZ,
  claimed_at        TIMESTAMPTZ NOT NULL,
  granted_at        TIMESTAMPTZ NOT NULL,
  lease_until       TIMESTAMPTZ NOT NULL,
  hold_until        TIMESTAMPTZ NOT NULL,
  expires_at        TIMESTAMPTZ NOT NULL,
  expiry_shard      INT2        NOT NULL,
  ended_at          TIMESTAMPTZ,
  hold              BOOL        NOT NULL,
  attempts_max      INT8        NOT NULL,
  redelivery_window INTERVAL    NOT NULL,
  retention         INTERVAL    NOT NULL,
  hold_max          INTERVAL    NOT NULL,
  result_bytes_max  INT8        NOT NULL,
  outcome           INT2        NOT NULL,
  omitted           INT2        NOT NULL,
  content_type      TEXT,
  metadata          BYTEA,
  result_sum        BYTEA,
  result            BYTEA,
  aside_bytes       INT8        NOT NULL,
  PRIMARY KEY (shard, tenant_id, consumer, event_id)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX IF NOT EXISTS claims_expiry_idx ON claims (expiry_shard, expires_at);

CREATE TABLE IF NOT EXISTS claim_results (
  shard     INT2  NOT NULL,
  tenant_id INT8  NOT NULL,
  consumer  TEXT COLLATE "C"  NOT NULL,
  event_id  TEXT COLLATE "C"  NOT NULL,
  fence     INT8  NOT NULL,
  body      BYTEA NOT NULL,
  PRIMARY KEY (shard, tenant_id, consumer, event_id, fence)
);
