-- The rows that a change depends on, by the primary key.
SELECT r.kind, r.name, r.tenant_id, r.version, r.revision, r.change_id, r.created_at, r.updated_at, r.deleted, r.state, r.label, r.doc
FROM
  unnest($1::INT2[], $2::TEXT[]) AS i (kind, name)
  INNER JOIN registry_rows AS r ON r.kind = i.kind AND r.name = i.name
