"""One copying task of one epoch. `task.run` is a plain function, wherever it runs.

Theory of operation

The destination's log end is the position; there is no other checkpoint. A batch keeps its offset, so the destination
must append every batch exactly where the source has it. Four things guarantee that:

- Sequences. A batch carries the mirror's producer id and a sequence that follows from its offset. A broker refuses a
  batch that does not follow the last one, so a late request, or a second copier, cannot shift anything. While the
  leader has no producer state of ours, the first batch goes alone (`partition_progress.PartitionProgress`).
- Base offsets. Each response's base offset is checked. After any error the outcome of batches in flight is unknown;
  the partition becomes LOST and is aligned again. Nothing is resent blindly.
- Topic ids. Where brokers can, Fetch and Produce name topics by their assigned ids: one made anew is not taken for the
  old one.
- Gaps. Offsets without a record are filled by control markers, or used up by hidden records. Markers have no
  sequence, so they have an owner (`gap_ownership.GapClaim`), and a newcomer fences it by a higher coordinator epoch.
  A gap is a barrier: everything before it is acknowledged before it is filled, and it is full before the next batch
  goes.

Alignment decides where a LOST partition resumes. `resume_finder.ResumeFinder` requests leaders and log ends in rounds
(`log_ends`); `resume_decision.ResumeDecider` decides, and where producer state is not enough both logs are compared
(`log_inspection`, in threads of `log_comparisons`). A source that lost records is found by its leader epochs (KIP-101),
then by content. Ranges that the source trimmed uncopied are recorded before copying passes them.

The loop (`task.CopyTask`) is single-threaded and never waits for one broker while another has work. Each turn: align
what is LOST, send Fetches, fill gaps, send what is queued, process responses. Threads only connect and compare; the
loop applies their results. A turn visits only partitions that may have work. `send_queue.QueueBudget` bounds waiting
batches.

Order of a record: `batch_fetcher` -> `batch_builder` -> `send_queue` -> `batch_producer` -> `response_errors`. States
and events of a partition are one table, `partition_states`.

Start reading at `task`, then `partition_replicator`, then `resume_decision` and `gap_filler`. This room stores nothing:
it reports to the driver (`driver_messages`, `task_datagrams`) and in its `TaskReport`.
"""
