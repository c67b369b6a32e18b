"""Log segments, shared by tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from mirror_core.wire.batch import BatchHeader
from mirrorbook_tools.logdir.backup import write_backup
from mirrorbook_tools.logdir.partition_truncation import (
    RemoveFiles,
    TruncationAction,
    perform_truncations,
)
from mirrorbook_tools.logdir.stopped_broker import (
    BrokerTruncation,
    TruncationTargets,
    hold_stopped_broker,
    parse_targets,
    plan_broker_truncation,
)
from tests.support.cut_logs import data, marker
from tests.support.log_directories import Broker

LOG: Final = [data(0, 9), data(10, 19), data(20, 29, 1), data(30, 39, 2), marker(40, 1), data(41, 49), marker(50, 2)]
"""Nothing is open at 0, 10, 20 and 51."""


def in_segments(log: Sequence[BatchHeader], firsts: Sequence[int]) -> dict[int, list[BatchHeader]]:
    """Segments that begin with these batches, by their numbers; the first one has base 0."""
    marks = sorted({0, *firsts, len(log)})
    return {(log[one].base_offset if one else 0): list(log[one:other]) for one, other in pairwise(marks)} or {0: []}


def plan_of(broker: Broker, *words: str) -> BrokerTruncation:
    with hold_stopped_broker([broker.log_dir]) as log_dirs:
        return plan_broker_truncation(log_dirs, parse_targets(words))


def cut(broker: Broker, targets: TruncationTargets, backup: Path | None = None) -> BrokerTruncation:
    with hold_stopped_broker([broker.log_dir]) as log_dirs:
        plan = plan_broker_truncation(log_dirs, targets)
        if backup is not None and plan.due_truncations:
            write_backup(backup, plan.owner, plan.due_truncations, [broker.log_dir])
        perform_truncations(plan.due_truncations, log_dirs, lambda cut: None)
        return plan


def single(actions: Sequence[TruncationAction]) -> list[TruncationAction]:
    """The same, one file at a time."""
    return [
        one
        for action in actions
        for one in ([RemoveFiles([path]) for path in action.paths] if isinstance(action, RemoveFiles) else [action])
    ]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    made = Broker.make(tmp_path / "data")
    made.add("t-0", in_segments(LOG, [2, 4]))
    return made
