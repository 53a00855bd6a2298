-- The owner knows best: a late completion whose fence is still current beats a
-- rerun, also when the record is in doubt or released.
UPDATE claims AS c
SET
  version = c.version + 1, state = 4, ended_at = t.at,
  expires_at = greatest(c.expires_at, greatest(t.at, c.lease_until) + c.redelivery_window),
  outcome = i.outcome, omitted = i.omitted, content_type = i.content_type, metadata = i.metadata,
  result_sum = i.result_sum, result = i.result, aside_bytes = i.aside_bytes
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::UUID[], $9::INT8[], $10::INT2[], $11::INT2[], $12::TEXT[], $13::BYTEA[], $14::BYTEA[], $15::BYTEA[], $16::INT8[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    attempt_id, fence, outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
  )
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.attempt_id = i.attempt_id AND c.fence = i.fence AND c.state IN (1, 2, 3)
RETURNING i.n
