"""Failover and failback: what runs do, step by step, and who conducts them.

A *plan* says what a failover or a failback would do, bound to what was observed. A *run* executes one approved plan.
Its journal, step outputs and audit log are in the state topic of the mirror's destination, so any process can continue
it: nothing is kept in memory between two steps.

Invariants:

- **One conductor acts.** A process that acts takes the mirror's control transactional id, and Kafka fences the previous
  holder (KIP-98), which fails at its next journal write. A process that only reads takes nothing over.
- **Every step may be repeated**, after a crash anywhere in it (`step_records`).
- **Nothing is promoted unfenced and unread.** Planned: fence, drain, final sync and the parity gate come first, and the
  source is probed again right before the first grant. Unplanned: a silent source gets a pending fence, and one that
  answers again is fenced before promotion; its uncopied records stay behind only after a person confirmed.
- **Approval is checked at the point of no return**, and before applications are stopped, against a new snapshot.
- **Abort is possible until the first grant**, and never afterwards. What an abort must undo is recorded before it is
  done: denials, `fence_command`, throttles, removed replicas, topics to recreate. An unreachable source gets a pending
  lift, which a watcher applies.
- **A failback discards only saved records.** Tails are salvaged behind a verified fence, growth is saved again, and
  log ends are checked once more before a topic is deleted.
- **A dead or hanging cluster delays a plan by seconds.** See `snapshot_reader.Query`.

`decide.steps` has the order of the steps. A failback conducts the planned failover of the reverse mirror before its
last step, `reprotect`.

Where to start reading:

- `conductor.Conductor`: open a run, take its steps, abort. `failover_conductor.Failover` and
  `failback_conductor.Failback` add the plans; `set_conductor.SetConductor` conducts several mirrors.
- `planned_steps`, `unplanned_steps`, `promotion_steps`, `failback_steps`, `divergent_tail_steps`: one method for each
  step, found by its name.
"""
