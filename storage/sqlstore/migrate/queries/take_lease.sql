-- Guarded by the fence that was read: of all who see the lease free one gets it,
-- and a copy of this statement that arrives late does nothing.
UPDATE warifu_schema
SET lease_owner = $1::TEXT, lease_fence = $2::INT8 + 1, lease_until = now() + $3::INTERVAL
WHERE id = 1 AND lease_fence = $2::INT8 AND (lease_owner = '' OR lease_until <= now());
