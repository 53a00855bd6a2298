-- Takes the lease from whoever holds it: a migrator that runs meanwhile stops.
UPDATE warifu_schema
SET lease_owner = '', lease_fence = lease_fence + 1, lease_until = now()
WHERE id = 1;
