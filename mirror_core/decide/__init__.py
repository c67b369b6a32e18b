"""Pure decisions: a snapshot in, a plan, a decision or its reasons out. No client, no clock, no I/O.

Callers read both clusters and the state topic, pass what they saw with the time of their clock, and act on the result.

Invariants:

- Unknown is a value, not zero. Lack of evidence never passes: a missing row is an error, an unseen end is no equality.
- An approval is bound to facts (`failover_plan.list_bound_facts`), never to offsets that always move. Facts are
  checked again before the fence and before promotion.
- A run's `failover_scope.FailoverScope` is fixed when the run begins. Later steps show that they covered it.
- Rules run before a process takes control of a mirror, and again afterwards, since it may have been paused between.

Order: `loss_bound` -> `mirror_snapshot` -> `failover_scope` -> `plan_figures` -> `failover_plan` ->
`failover_readiness`. After a failover: `fence_state`, then `failback_plan` with `truncation`.

Start with `steps` (what a run does), then `mirror_snapshot.MirrorSnapshot` and `failover_plan.decide_failover`.
"""
