-- Whoever still has the fence says where the work goes on.
UPDATE registry_leases AS l
SET cursor = $3::BYTEA
WHERE l.name = $1::TEXT AND l.fence = $2::INT8
