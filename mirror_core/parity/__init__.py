"""Do both clusters hold the same records? Comparison, certificates, and saving a divergent tail.

Mirror partitions have the source's offsets, so the same range of both logs must hold the same records.

**Order of a check** (`check.check_parity`). `comparable_ranges` finds what can be compared. Ends are compared first,
destination before source, so that copying meanwhile does not look like a difference. `compare.compare_task`, in a
thread or a Spark executor, then compares chunks by digests of raw batches, and record by record where digests differ.

**Invariants**

- *What cannot be read is never equal.* It becomes a row with an error, and the result is indeterminate.
- *A cluster is a name and an id* (`ClusterIdentity`).
- *Digests are keyed, and keys are drawn after both logs were written* (`keyed_digest`, ADR 0014).
- *Compaction explains a lone record only by evidence* (`record_differences`). Each cluster compacts at its own times.
- *A certificate needs no source* (`certificate_check`): receipts hold digests of what was acknowledged.
- *A salvage is counted against the log, and never overwritten* (`salvage`): it may be the only copy.

Start with `check`, then `compare`.
"""
