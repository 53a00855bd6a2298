-- Whether a write would be taken.
SELECT current_setting('transaction_read_only')
