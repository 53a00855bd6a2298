-- Only a live lease is extended, never beyond its hold, and never made shorter.
UPDATE claims AS c
SET
  version = c.version + 1, lease_until = greatest(c.lease_until, least(t.at + i.lease, c.hold_until)),
  expires_at = greatest(c.expires_at, greatest(c.lease_until, least(t.at + i.lease, c.hold_until)) + c.redelivery_window)
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::UUID[], $9::INT8[], $10::INTERVAL[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    attempt_id, fence, lease
  )
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.attempt_id = i.attempt_id AND c.fence = i.fence AND c.state = 1 AND c.lease_until > t.at
RETURNING i.n
