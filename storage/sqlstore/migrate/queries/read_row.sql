-- Whether the lease is held is the database's judgement: no two clocks are compared.
SELECT version, statement, lease_owner, lease_fence, lease_until,
       lease_owner <> '' AND lease_until > now() AS held
FROM warifu_schema
WHERE id = 1;
