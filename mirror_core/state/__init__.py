"""Durable state: one compacted topic on the destination, `__mirrorbook_state`, and who may write it.

Order: `record_encoding` (bytes and keys) -> `state_records` (`State`, the sum of all records) -> `topic_reader`,
`state_topic` (reading) -> `writer` (owning) -> `journal` (a run's steps), `lease` (the data plane), `run_heartbeat`.

Invariants:

- *One writer per mirror and role.* `writer.StateWriter` takes the transactional id `mirrorbook.ROLE.MIRROR` and so
  fences its previous owner, which learns it at its next write. Hence intent is written before every visible action.
- *All or none.* Every write is a transaction; readers skip what is open or aborted.
- *Nothing acts on partial state.* An unreadable record makes its mirror Indeterminate, and no other.
- *A step may run again.* `journal.Journal.perform` writes intent, acts, writes evidence.
- *Signs of life fence nobody.* `non_transactional_writer` uses no transaction; heartbeats, approvals and watchers
  rely on it.
- *Lease:* tasks outlive their driver, so the next owner waits until their own clocks have stopped them.
  Recovery never takes the mirror from a new owner: see `lease.LeaseRecovery`.

`active_cluster` is for applications, no memory of ours.
Start with `writer`, `journal`, `state_records`.
"""
