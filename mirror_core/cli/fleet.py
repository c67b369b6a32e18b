"""`mirrorbook replicate`: its progress line, several mirrors, and the command."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from mirror_core.cli.common import load_configuration
from mirror_core.cli.metrics import serve_metrics
from mirror_core.cli.progress import show_totals
from mirror_core.cli.telling import print_line
from mirror_core.dataplane.driver import ReplicationOptions
from mirror_core.dataplane.runner import Runner
from mirror_core.mirrors.fleet import Fleet, FleetMember
from mirror_core.model.errors import BadRequest, PartitionFailed
from mirror_core.model.names import MirrorName


def replicate_mirrors(
    config: Path | None,
    names: Sequence[str],
    runners: AbstractContextManager[Callable[[int], Runner]],
    receipts: str,
    metrics_address: tuple[str, int] | None,
    stop: threading.Event,
    prove_bytes_per_s: int | None,
) -> None:
    """Until stopped. Raises PartitionFailed if partitions were left behind."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise BadRequest(f"{', '.join(repeated)}: named more than once")
    path = load_configuration(config).path
    with runners as start:
        members = [
            FleetMember(
                path,
                MirrorName(name),
                partial(start, number),
                ReplicationOptions(receipts=receipts),
                stop=stop,
                print_line=print_line,
                verify_bytes_per_s=prove_bytes_per_s,
            )
            for number, name in enumerate(names)
        ]
        fleet = Fleet(members, stop)
        with show_totals(fleet), serve_metrics(metrics_address, fleet, print_line):
            fleet.run()
    failed = [f"{m.name}: {p}: {reason}" for m in members for p, reason in sorted(m.failed.items())]
    if failed:
        listed = "".join(f"\n  - {line}" for line in failed)
        raise PartitionFailed(
            f"{len(failed)} partitions FAILED; `mirrorbook mirror recover` shows what can be done about each:{listed}"
        )
