"""Tools beside Mirrorbook: local clusters, the demonstration, and what cuts a stopped broker's logs.

`mirror_core` does not import this package. It finds the commands by the entry point group `mirrorbook.commands`
(`commands`), so that `mirrorbook sandbox`, `mirrorbook demo` and `mirrorbook log` are there where this is installed.

- `sandbox`: two small clusters of real brokers on this machine. For tests, benchmarks, the demonstration.
- `demo`: the demonstration's stage, applications, commands and verdict. It knows Mirrorbook by its command line only.
- `logdir`: reads and truncates the log directories of a stopped broker, for a failback.
- `cli`: parse, call, print.
"""
