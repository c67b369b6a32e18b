"""Values, names and errors that all rooms share.

Everything here is frozen and has no I/O, except for `logs`, `files` and `gc_tuning`. Other rooms import it; it imports
none of them.

Invariants
----------
- None is a value: unknown. Unknown never becomes zero, so a missing fact cannot pass for a good one.
- No value holds a secret.
- Records of the state topic and messages between processes are these types as JSON: renaming a field
  changes the format.
- A plan's hash covers what was approved, never figures that change by themselves.

Start with `mirror`, `run`, `task_messages` and `errors`.
"""
