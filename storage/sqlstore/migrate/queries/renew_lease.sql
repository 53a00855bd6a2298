-- A lapsed lease that nobody took may be renewed; a taken one has another fence.
UPDATE warifu_schema
SET lease_until = now() + $3::INTERVAL
WHERE id = 1 AND lease_owner = $1::TEXT AND lease_fence = $2::INT8;
