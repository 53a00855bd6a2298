-- A body goes in beside the record that has just been completed with it, and
-- only there: the record says which bytes they are, by their sum. What was completed
-- before has its body, or is being forgotten by somebody else right now.
INSERT INTO claim_results (shard, tenant_id, consumer, event_id, fence, body)
SELECT c.shard, c.tenant_id, c.consumer, c.event_id, c.fence, i.body
FROM
  unnest($3::INT2[], $4::INT2[], $5::INT8[], $6::TEXT[], $7::TEXT[], $8::BYTEA[], $9::BYTEA[])
    AS i (n, shard, tenant_id, consumer, event_id, result_sum, body)
  CROSS JOIN (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t
  JOIN claims AS c ON c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
WHERE c.state = 4 AND c.aside_bytes > 0 AND c.result_sum = i.result_sum AND c.ended_at = t.at
ORDER BY i.n
ON CONFLICT (shard, tenant_id, consumer, event_id, fence) DO NOTHING
