-- The fence stays: it is what the next holder counts on from.
UPDATE warifu_schema
SET lease_owner = '', lease_until = now()
WHERE id = 1 AND lease_owner = $1::TEXT AND lease_fence = $2::INT8;
