"""Everything that follows the source except records: topics and settings, ACLs, group offsets, quotas, fences.

`mirror_sync.sync_mirror` (every 30 s) compares both clusters and acts on each difference: topics and settings
(`mirror_topics`), ACLs (`acl_sync`), offsets of groups idle on the destination (`offset_sync`). `offset_follower`
commits within a second in between.

**Invariants**

- *Ledger first* (`acl_ledger`). An ACL entry is recorded in the state topic before it is created, and forgotten after
  no broker shows it. A crash leaves entries that a second call finds, never one that nobody remembers.
- *ACLs and commands know no owner.* A process may sleep before it acts. It therefore writes to the mirror's state,
  which only the owner can; when that fails, it makes the cluster match the owner's state (`acl_ledger`,
  `fence_command_runner`).
- *A fence is verified* (`fence_acls.apply_fence`). Brokers enforce entries late, and a denial ends no open transaction.
  So: deny, see it on every broker, wait for transactions, see log ends stand still.
- *Late commits are refused.* Syncs and followers commit as the data principal, which a failover denies before its final
  sync (`offset_commits`).
- *An application's progress is never taken back* (`OwnCommittedOffsets`).

Order of a promotion and of a demotion: see `acl_sync.apply_promotion` and `acl_sync.demote_topics`. Client quotas come
last (`quota_sync`).

Start with `mirror_sync`, `acl_ledger` and `fence_acls`.
"""
