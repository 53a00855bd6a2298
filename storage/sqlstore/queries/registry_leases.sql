-- All leases, and the time: also where there is none.
SELECT c.at, l.name, l.owner, l.fence, l.lease_until, l.cursor
FROM (SELECT now() AS at) AS c LEFT JOIN registry_leases AS l ON true
ORDER BY l.name NULLS FIRST
LIMIT $1::INT8
