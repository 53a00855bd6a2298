-- A body goes in beside the record that has just been completed with it, and
-- only there: the record says which bytes they are, by their sum.
INSERT INTO claim_results (shard, tenant_id, consumer, event_id, fence, body)
SELECT c.shard, c.tenant_id, c.consumer, c.event_id, c.fence, i.body
FROM
  unnest($1::INT2[], $2::INT2[], $3::INT8[], $4::TEXT[], $5::TEXT[], $6::BYTEA[], $7::BYTEA[])
    AS i (n, shard, tenant_id, consumer, event_id, result_sum, body)
  JOIN claims AS c ON c.shard = i.shard AND c.tenant_id = i.tenant_id AND c.consumer = i.consumer AND c.event_id = i.event_id
WHERE c.state = 4 AND c.aside_bytes > 0 AND c.result_sum = i.result_sum
ORDER BY i.n
ON CONFLICT (shard, tenant_id, consumer, event_id, fence) DO NOTHING
