-- Gives a lease back before it is over.
UPDATE registry_leases AS l
SET owner = '', lease_until = least(l.lease_until, t.at)
FROM (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t
WHERE l.name = $3::TEXT AND l.fence = $4::INT8
