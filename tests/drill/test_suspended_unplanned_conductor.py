"""Each conductor of an unplanned failover falls asleep, and wakes up when another is at work: it can do nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import psutil
import pytest

from mirror_core.decide import process_liveness
from mirror_core.decide.steps import list_step_names
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import LostOwnership
from mirror_core.model.mirror import PartitionState
from mirror_core.model.names import Partition
from mirror_core.model.run import RunKind, RunMode, RunState
from tests.drill.dying import Death
from tests.support.cli_process import Forked
from tests.support.cluster_admin import rights_of
from tests.support.failover_runs import app_topic, committed, denied
from tests.support.failover_runs import commit as commit_offset
from tests.support.kafka_clients import Pair, produce, read_all, read_all_aiokafka
from tests.support.killed_conductors import ENDS_S, conducted
from tests.support.mirrored_topics import Mirrored, new_mirror
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill]

AFTER: tuple[Literal[1, "all"], ...] = (1, "all")
STEPS = list_step_names(RunKind.FAILOVER, RunMode.UNPLANNED)


@dataclass(frozen=True, slots=True)
class Hurried:
    """In the conductor's process: a sleeper counts as gone at once, not after half a minute."""

    before: Callable[[], object]

    def __call__(self) -> None:
        patch.object(process_liveness, "CONDUCTOR_TIMEOUT_S", 0.0).start()
        self.before()


def left_by_all(mirrored: Mirrored, topic: str) -> dict[str, object]:
    """Whatever a conductor can change."""
    state = mirrored.state
    return {
        "rights": rights_of(mirrored.pair.west),
        "ledger": state.ledger_entries(mirrored.name),
        "partitions": mirrored.statuses,
        "mirror": state.mirrors[mirrored.name],
        "debt": state.pending_fences.get(mirrored.name),
        "lease": state.leases[mirrored.name],
        "runs": {key: run for key, run in state.runs.items() if run.plan.mirror == mirrored.name},
        "steps": {key: step for key, step in state.steps.items() if key[0].startswith(mirrored.name)},
        "records": read_all(mirrored.pair.west, topic),
    }


def asleep(sleeper: Forked) -> None:
    process = psutil.Process(sleeper.pid)
    ended = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    wait_until(lambda: process.status() in ended, timeout_s=ENDS_S, why="it falls asleep")


def woken(sleeper: Forked, mirrored: Mirrored, topic: str) -> None:
    """It learns that the run is another's, and has changed nothing."""
    before = left_by_all(mirrored, topic)
    os.kill(sleeper.pid, signal.SIGCONT)
    assert sleeper.wait(ENDS_S) == LostOwnership.exit_code
    assert left_by_all(mirrored, topic) == before


def test_each_conductor_of_an_unplanned_failover_sleeps_over_the_next_one(pair: Pair, tmp_path: Path) -> None:
    """In each step two: one falls asleep at its first action, the next one when all is done and not said."""
    topic = app_topic(pair)
    group = f"g-{topic}"
    sent = produce(pair.east, topic, 100)
    commit_offset(pair.east, group, topic, 77)
    mirrored = new_mirror(pair, tmp_path, topic, groups=(group,))
    mirrored.copy()
    mirror_commands.run_sync(mirrored.link)
    conductors = conducted(mirrored, "sleeping conductor")
    pair.east.kill()
    try:
        with ExitStack() as ended:
            arguments: tuple[str, ...] = ("failover", "run", "--mode", "unplanned", "--yes")
            last: Forked | None = None
            for step in STEPS:
                for number, after in enumerate(AFTER):
                    told = tmp_path / f"{step}-{number}"
                    death = Hurried(Death(step, after, told, signal.SIGSTOP))
                    sleeper = ended.enter_context(conductors.command(*arguments, death=death))
                    asleep(sleeper)
                    assert told.exists(), conductors.log.read_text(encoding="utf-8")
                    if last is not None:
                        woken(last, mirrored, topic)
                    last, arguments = sleeper, ("failover", "resume")
            with conductors.command("failover", "resume", death=Hurried(int)) as finishing:
                assert finishing.wait(ENDS_S) == 0, conductors.log.read_text(encoding="utf-8")
            assert last is not None
            woken(last, mirrored, topic)
        assert read_all(pair.west, topic) == sent
        assert read_all_aiokafka(pair.west, topic) == sent
        assert committed(pair.west, group, topic) == 77
        assert not denied(pair.west, topic)
    finally:
        pair.east.start()
    (run,) = [r for r in mirrored.state.runs.values() if r.plan.mirror == mirrored.name]
    assert run.state is RunState.DONE
    assert {p: (s.state, s.lmo) for p, s in mirrored.statuses.items()} == {
        Partition(topic, 0): (PartitionState.STOPPED, 100)
    }
