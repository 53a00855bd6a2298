-- Findings and jobs leave nothing behind: their IDs do not come back.
DELETE FROM registry_rows AS r
WHERE (r.kind, r.name, r.version) IN (
    SELECT i.kind, i.name, i.version
    FROM unnest($1::INT2[], $2::TEXT[], $3::INT8[]) AS i (kind, name, version)
  )
