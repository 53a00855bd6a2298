-- The same grant again, after its own lapsed lease: nobody took it meanwhile.
UPDATE claims AS c
SET
  version = c.version + 1, state = CASE WHEN i.outcome = 0 THEN 1 ELSE 4 END,
  lease_until = t.at + i.lease, hold_until = t.at + greatest(c.hold_max, i.lease),
  expires_at = greatest(c.expires_at, t.at + i.lease + c.redelivery_window), ended_at = CASE WHEN i.outcome = 0 THEN NULL ELSE t.at END,
  outcome = i.outcome, omitted = i.omitted, content_type = i.content_type, metadata = i.metadata,
  result_sum = i.result_sum, result = i.result, aside_bytes = i.aside_bytes
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t,
  unnest(
    $3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[],
    $8::INT8[], $9::INT8[], $10::UUID[], $11::INTERVAL[], $12::INT2[], $13::INT2[], $14::TEXT[], $15::BYTEA[], $16::BYTEA[], $17::BYTEA[], $18::INT8[]
  ) AS i (
    n, shard, tenant_id, consumer, event_id,
    fence, version, attempt_id, lease, outcome, omitted, content_type, metadata, result_sum, result, aside_bytes
  )
WHERE c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
  AND c.fence = i.fence AND c.version = i.version AND c.attempt_id = i.attempt_id AND c.state = 1 AND c.lease_until <= t.at AND NOT c.hold
RETURNING i.n
