"""Runs the same functions as the local runner on Spark's executors. No logic of its own.

`session` starts the one Spark of a process. `runner.SparkRunner` copies, `parity_job` compares, `salvage_job` saves
divergent tails and writes saved records back, `record_source` gives users a DataFrame of records, `hadoop_store` keeps
small files. Workers, forked by `daemon`, import `copy_executor` and `executor_tasks`, which must not import Spark, and
must be fast to import.

Invariants
----------
- Spark only places tasks. It may run one twice or late; sequences and the lease decide what is written.
- Speculation is off, also in a Spark that was there before: a second copy of a task would be a second writer.
- A task of copying or comparing is a job of its own: one whose worker always dies costs no other its result.
- Assignments and settings hold no secret, since Spark shows both. Errors travel as values with checked texts.
- Two epochs overlap, so a runner needs two task slots per task; a job without a slot fails after a
  minute instead of waiting for ever.

Start with `runner`, then `session`.
"""
