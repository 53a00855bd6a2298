-- All that ran: its hashes are compared with the files of this binary.
SELECT version, statement, name, sha256
FROM warifu_schema_steps
ORDER BY version, statement;
