-- Moves the schema by one step and says which, as one: a holder that was
-- replaced moves nothing, and a second try of a first that was committed neither.
WITH moved AS (
  UPDATE warifu_schema
  SET version = $1::INT8, statement = $2::INT8
  WHERE id = 1 AND version = $3::INT8 AND statement = $4::INT8
    AND lease_owner = $5::TEXT AND lease_fence = $6::INT8
  RETURNING id
)
INSERT INTO warifu_schema_steps (version, statement, name, sha256, applied_at)
SELECT $7::INT8, $8::INT8, $9::TEXT, $10::BYTEA, now()
FROM moved;
