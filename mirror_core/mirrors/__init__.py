"""What operators do to a mirror and see of it, and what watches its old source after a failover.

A mirror's state is on its destination, written under one transactional id, the control id. Taking it ends its holder at
the holder's next write. A run holds it for hours; everything here takes it for moments.

**Invariants**

- *Look, decide, then take over* (`control.take_control`). A command takes the control id only when it may act, and
  decides again as owner. So a refused command disturbs nobody.
- *Long commands take turns* (`CommandRule.takes_turns`).
- *Whoever comes first applies a fence, as often as needed* (`fence_watcher`). A watcher writes to the state, acts, and
  writes again: the first write shows ownership, the second that it was kept. A watcher that lost it removes what the
  new owner's ledger does not have.
- *While a run holds the mirror, watchers write no state* (`old_source_fence`), but may create missing denials: all are
  in the ledger before promotion.
- *A pending fence is forgotten before its denials are deleted.*
- *Concurrent comparisons lose nothing* (`incremental_verification`): each writes its own findings, keeps newer ones,
  and restores nothing that others removed.
- *Nothing is deleted that was not shown* (`recovery_plan`, `partition_recovery`): an approval is bound to a hash.

Start with `control`, then `mirror_commands` and `fence_watcher`.
"""
