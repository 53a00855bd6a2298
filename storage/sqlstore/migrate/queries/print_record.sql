-- As record_step, for a script without a lease: where the schema already is
-- further, nothing is recorded twice.
WITH moved AS (
  UPDATE warifu_schema
  SET version = $1::INT8, statement = $2::INT8
  WHERE id = 1 AND version = $3::INT8 AND statement = $4::INT8
  RETURNING id
)
INSERT INTO warifu_schema_steps (version, statement, name, sha256, applied_at)
SELECT $5::INT8, $6::INT8, $7::TEXT, $8::BYTEA, now()
FROM moved;
