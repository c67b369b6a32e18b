"""Reads and truncates the log directories of a stopped broker. No Kafka client.

For `mirrorbook log truncate`: a failback cuts the divergent tail off the old source's logs.
Order: `stopped_broker` locks the directories and plans, `backup` copies what will go and reads it back,
`partition_truncation` cuts and verifies. `layout` and `segments` read files.

Invariants
----------
- The broker's own lock is held, so the broker cannot start in between.
- Anything unknown in a directory is refused, never skipped. All targets are reached, or nothing is cut.
- Nothing is cut before its copy was verified.
- After every action the log is valid and can be cut again, so a killed command is simply repeated.

Start with `layout`, then `partition_truncation`.
"""
