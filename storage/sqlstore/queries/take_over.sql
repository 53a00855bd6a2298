-- The next attempt of the same life, after a release or a lapsed lease. Policy,
-- first claim and event time stay as the first attempt brought them.
UPDATE claims AS c
SET
  version = c.version + 1, state = CASE WHEN i.outcome = 0 THEN 1 ELSE 4 END,
  takeover = CASE WHEN c.state = 2 THEN 2 ELSE 1 END, attempt = c.attempt + 1, attempt_id = i.attempt_id,
  fence = greatest((extract(epoch FROM t.at) * 1000000)::INT8, c.fence + 1), digests = i.digests,
  granted_at = t.at, lease_until = t.at + i.lease, hold_until = t.at + greatest(c.hold_max, i.lease),
  expires_at = greatest(c.expires_at, t.at + i.lease + c.redelivery_window), ended_at = CASE WHEN i.outcome = 0 THEN NULL ELSE t.at END,
  outcome = i.outcome, omitted = i.omitted, content_type = i.content_type, metadata = i.metadata,
  result_sum = i.result_sum, result = i.result, aside_bytes = i.aside_bytes
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::INT8[], $9::INT8[], $10::UUID[], $11::BYTEA[], $12::INTERVAL[], $13::INT2[], $14::INT2[], $15::TEXT[], $16::BYTEA[], $17::BYTEA[], $18::BYTEA[], $19::INT8[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    fence, version, attempt_id, digests, lease, outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
  )
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.fence = i.fence AND c.version = i.version
  AND (c.state = 2 OR (c.state = 1 AND c.lease_until <= t.at AND NOT c.hold AND (c.attempts_max = 0 OR c.attempt < c.attempts_max)))
RETURNING i.n
