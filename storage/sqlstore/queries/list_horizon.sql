-- How far each shard was looked at, where that was not to its end: behind the
-- first of these a filtered page does not know everything.
SELECT l.consumer, l.event_id
FROM
  unnest($1::INT2[]) AS s (shard)
  CROSS JOIN LATERAL (
    SELECT c.consumer, c.event_id
    FROM claims AS c
    WHERE c.shard = s.shard AND c.tenant_id = $2::INT8 AND (c.consumer, c.event_id) > ($3::TEXT, $4::TEXT)
      AND (c.consumer, c.event_id) >= ($5::TEXT, $6::TEXT) AND (c.consumer, c.event_id) <= ($7::TEXT, $8::TEXT)
    ORDER BY c.consumer, c.event_id
    LIMIT 1 OFFSET $9::INT8
  ) AS l
ORDER BY l.consumer, l.event_id
LIMIT 1
