-- A lease goes to whoever comes when it is free, or over, or their own. The owner
-- of a live one keeps its fence; every other grant has a larger one.
INSERT INTO registry_leases AS l (name, owner, fence, lease_until, cursor)
SELECT $3::TEXT, $4::TEXT, (extract(epoch FROM t.at) * 1000000)::INT8, t.at + $5::INTERVAL, ''::BYTEA
FROM (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t
ON CONFLICT (name) DO UPDATE
SET
  owner = excluded.owner,
  fence = CASE
    WHEN l.owner = excluded.owner AND l.lease_until > excluded.lease_until - $5::INTERVAL THEN l.fence
    ELSE greatest(l.fence + 1, excluded.fence)
  END,
  lease_until = CASE
    WHEN l.owner = excluded.owner AND l.lease_until > excluded.lease_until - $5::INTERVAL THEN greatest(l.lease_until, excluded.lease_until)
    ELSE excluded.lease_until
  END
WHERE l.owner = excluded.owner OR l.owner = '' OR l.lease_until <= excluded.lease_until - $5::INTERVAL
