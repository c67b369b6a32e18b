"""Runs the same functions as the local runner on Spark's executors. No logic of its own.

Workers, forked by `daemon`, import `copy_executor` and `executor_tasks`, which must not import Spark, and must be fast
to import.

Invariants
----------
- Spark only places tasks. It may run one twice or late; sequences and the lease decide what is written.
- Speculation is off, also in a Spark that was there before: a second copy of a task would be a second writer.
- A task of copying or comparing is a job of its own: one whose worker always dies costs no other its result.
- Assignments and settings hold no secret, since Spark shows both.

Start with `runner`, then `session`.
"""
