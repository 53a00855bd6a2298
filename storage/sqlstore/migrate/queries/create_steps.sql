-- What ran, with its hash, so that a file that was edited afterwards is noticed.
CREATE TABLE IF NOT EXISTS warifu_schema_steps (
  version    INT8        NOT NULL,
  statement  INT8        NOT NULL,
  name       TEXT        NOT NULL,
  sha256     BYTEA       NOT NULL CHECK (length(sha256) = 32),
  applied_at TIMESTAMPTZ NOT NULL,
  PRIMARY KEY (version, statement)
);
