-- One statement sees one moment under every isolation level, so rows and revision
-- belong together. Without a change it reads one row of registry_meta, and where
-- nothing follows in the index. A full load leaves tombstones out.
SELECT m.revision, (SELECT coalesce(max(t.name), '') FROM registry_rows AS t WHERE t.kind = 1),
  r.kind, r.name, r.tenant_id, r.version, r.revision, r.change_id, r.created_at, r.updated_at, r.deleted, r.state, r.label, r.doc
FROM
  registry_meta AS m
  CROSS JOIN unnest(ARRAY[1, 2, 3]::INT2[]) AS k (kind)
  LEFT JOIN registry_rows AS r ON r.kind = k.kind AND r.revision > $1::INT8 AND ($1::INT8 > 0 OR NOT r.deleted)
WHERE m.id = 1
