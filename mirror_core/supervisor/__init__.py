"""Keeps one data plane alive on this host, without Airflow. Knows nothing of Kafka.

`supervisor.Supervisor` starts `mirrorbook replicate`, and starts it again when it ends, with growing
delays. After a refusal (exit code 3) `mirrorbook mirror watch` runs instead, so that the old source of a
failover stays fenced.

Invariants
----------
- That only one data plane copies is guaranteed by the mirror's lease, not here. The lock only prevents
  two supervisors of one host, and the kernel releases it whatever kills the holder.
- A status names its process by pid, start time, boot and pid namespace: a later one with its pid is another.
- A child does not outlive its supervisor (Linux: SIGTERM at the parent's death), and a full disk or a
  closed terminal never ends a supervisor whose child copies.

Start with `supervisor`.
"""
