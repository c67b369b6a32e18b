"""What is remembered: partition states as a table, state records, the run journal, the lease."""
