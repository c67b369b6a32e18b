"""Do both clusters hold the same records? Comparison, certificates, and saving a divergent tail.

Theory of operation. Mirror partitions have the source's offsets, so the same range of both logs must hold the same
records.

**Order of a check** (`check.check_parity`). `comparable_ranges` finds what can be compared: from the source's log start
to the smaller of its last stable offset and the position, or to the LMO. Ends are compared first, destination before
source, so that copying meanwhile does not look like a difference. `compare.compare_task` then compares chunks by
digests of raw batches, and record by record where digests differ. It is a plain function that a thread or a Spark
executor runs; it opens the configuration itself, so no secret travels.

**Invariants**

- *What cannot be read is never equal.* It becomes a row with an error, and the result is indeterminate.
- *A cluster is a name and an id* (`ClusterIdentity`): whoever reads, on whatever machine, refuses another cluster that
  its configuration calls so.
- *Digests are keyed, and keys are drawn after both logs were written* (`keyed_digest`, ADR 0014): nobody can prepare
  two inputs with equal digests.
- *Compaction explains a lone record only by evidence* (`record_differences`): a newer record of its key, or a tombstone
  with nothing older left. Each cluster compacts at its own times.
- *A certificate needs no source* (`certificate_check`): receipts hold digests of what was sent and acknowledged, and
  speak of one topic id only.
- *A salvage is counted against the log before it is moved into place, and never overwritten* (`salvage`): it may be the
  only copy.

Start with `check`, then `compare`.
"""
