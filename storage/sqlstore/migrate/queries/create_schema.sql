-- One row says where the schema is and who may move it. lease_fence counts the
-- holders, so that one whose lease lapsed is told from the next of the same name.
CREATE TABLE IF NOT EXISTS warifu_schema (
  id          INT2        NOT NULL PRIMARY KEY CHECK (id = 1),
  version     INT8        NOT NULL,
  statement   INT8        NOT NULL,
  lease_owner TEXT        NOT NULL,
  lease_fence INT8        NOT NULL,
  lease_until TIMESTAMPTZ NOT NULL
);
