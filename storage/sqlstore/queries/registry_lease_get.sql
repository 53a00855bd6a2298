-- Whose the lease is, after it was asked for.
SELECT now(), l.name, l.owner, l.fence, l.lease_until, l.cursor
FROM registry_leases AS l
WHERE l.name = $1::TEXT
