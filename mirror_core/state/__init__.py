"""What is remembered: the state topic, its records, the partition states as a table, the journal, the lease."""
