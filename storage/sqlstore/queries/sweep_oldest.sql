-- The earliest expiry of one shard whose grace has not passed: that is left.
SELECT min(c.expires_at)
FROM claims AS c
WHERE c.expiry_shard = $1::INT2 AND c.expires_at > $2::TIMESTAMPTZ AND c.expires_at <= $3::TIMESTAMPTZ
  AND (c.state IN (2, 4, 5) OR (c.state = 1 AND NOT c.hold AND c.lease_until <= $3::TIMESTAMPTZ))
