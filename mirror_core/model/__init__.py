"""Values, names and errors that all rooms share.

Everything here is frozen and has no I/O, except for `logs`, `files` and `gc_tuning`. Other rooms import it; it imports
none of them.

What travels between rooms
--------------------------
- `names`: clusters, mirrors, partitions and offsets. Source and destination offsets are equal.
- `mirror`: a mirror, its partitions' states and its lease.
- `task_messages`: `Assignment` to a copying task, `TaskReport` back, with one `Receipt` per partition.
- `run`: `Plan`, `Run` and the journal's `StepRecord`. `run_checkpoints`: values that steps store.
  `audit_log`: every event of a run, hash-chained.
- `source_observation` and `forecast`: what an unplanned failover knows, and would lose.
- `acl` and `pending_fence`: denials that Mirrorbook made or still has to make.
- `parity_verdict`: what was compared, and how far a copy is verified.

Invariants
----------
- None is a value: unknown. Unknown never becomes zero, so a missing fact cannot pass for a good one.
- No value holds a secret. Errors of unknown origin show only their type (`errors.format_safe_error`).
- Records of the state topic and messages between processes are these types as JSON: renaming a field
  changes the format.
- A plan's hash covers what was approved, never figures that change by themselves.
- Callers decide by an error's class, never by its text. The class sets the exit code.

Start with `mirror`, `run` and `errors`.
"""
