"""Keeps one mirror copying: the driver, its plans and epochs, where tasks run, metrics.

`driver.Replication` holds the lease, and copying happens in epochs of 30 s. Each epoch: refresh the state, check that
copying may go on (`check_may_run`), plan (`epoch_planner.Planner`), record what changed, promise in the lease until
when tasks may write, submit tasks to a `task_runner.Runner`, and process their reports (`epoch_results.EpochResults`).

Invariants:

- The lease decides who copies; the promise in it bounds how long its tasks may write; sequences decide what may be
  written. Only the last one has to be right for the data to be right.
- What is new is recorded before it is copied; trimmed ranges are recorded before tasks pass them.
- While the state topic rejects writes, tasks go on up to the promise, and none starts.
- Nothing slow runs on the driver's thread without renewing the lease (`driver.LeaseKeepalive`). Receipts, heartbeats
  and observations have threads of their own; when these fail, copying goes on.

Tasks report by datagrams (`datagram_receiver`) to `progress` and to the claim board of `copy.driver_messages`. A driver
that stops says so in the responses, and waits for their receipts. `prometheus_collector` exports `counters` and
`progress`; what is unknown has no sample.

Start reading at `driver`, then `epoch_planner` and `epoch_results`.
"""
