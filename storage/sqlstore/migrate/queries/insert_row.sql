-- Everything else is an UPDATE of this row, compared and set.
INSERT INTO warifu_schema (id, version, statement, lease_owner, lease_fence, lease_until)
VALUES (1, 0, 0, '', 0, now())
ON CONFLICT (id) DO NOTHING;
