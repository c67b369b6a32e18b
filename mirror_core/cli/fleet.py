"""`mirrorbook replicate`: its progress line, several mirrors, and the command."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from mirror_core.cli.common import configuration
from mirror_core.cli.metrics import served
from mirror_core.cli.progress import showing
from mirror_core.cli.telling import tell
from mirror_core.dataplane.driver import Options
from mirror_core.dataplane.runner import Runner
from mirror_core.mirrors.fleet import Fleet, Member
from mirror_core.model.errors import BadRequest, PartitionFailed
from mirror_core.model.names import MirrorName


def replicate_together(
    config: Path | None,
    names: Sequence[str],
    runners: AbstractContextManager[Callable[[int], Runner]],
    receipts: str,
    where: tuple[str, int] | None,
    stop: threading.Event,
    prove_at: int | None,
) -> None:
    """Until stopped. Raises PartitionFailed if partitions were left behind."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise BadRequest(f"{', '.join(twice)}: named more than once")
    path = configuration(config).path
    with runners as start:
        members = [
            Member(
                path,
                MirrorName(name),
                partial(start, number),
                Options(receipts=receipts),
                stop=stop,
                say=tell,
                prove_at=prove_at,
            )
            for number, name in enumerate(names)
        ]
        fleet = Fleet(members, stop)
        with showing(fleet), served(where, fleet, tell):
            fleet.run()
    failed = [f"{m.name}: {p}: {why}" for m in members for p, why in sorted(m.failed.items())]
    if failed:
        listed = "".join(f"\n  - {line}" for line in failed)
        raise PartitionFailed(
            f"{len(failed)} partitions FAILED; `mirrorbook mirror recover` shows what can be done about each:{listed}"
        )
