-- Notes when keys were last used, once in a while: a busy key must not be a busy
-- row. Not in the future, and not of keys that do not exist.
INSERT INTO registry_seen AS s (key_id, seen_at)
SELECT i.key_id, least(i.seen_at, t.at)
FROM
  (SELECT greatest($1::TIMESTAMPTZ, CASE WHEN now() > $2::TIMESTAMPTZ + INTERVAL '1 hour' THEN $2::TIMESTAMPTZ ELSE now() END) AS at) AS t
  CROSS JOIN unnest($3::TEXT[], $4::TIMESTAMPTZ[]) AS i (key_id, seen_at)
  INNER JOIN registry_rows AS r ON r.kind = 3 AND r.name = i.key_id AND NOT r.deleted
ORDER BY i.key_id
ON CONFLICT (key_id) DO UPDATE SET seen_at = excluded.seen_at
WHERE excluded.seen_at >= s.seen_at + INTERVAL '1 minute'
