-- The row that changes queue at is made by the first of them: migrations change no
-- rows.
INSERT INTO registry_meta (id, revision, at)
VALUES (1, 0, TIMESTAMPTZ '1970-01-01 00:00:00+00')
ON CONFLICT (id) DO NOTHING
