"""What a run of a mirror of 50,000 partitions writes and reads back, in a process of its own that measures itself.

    python -m tests.cluster.large_state STAGE CONFIG EVIDENCE

Prints what it took as JSON: `mib` above the idle process, `seconds` of each action. The topics are nowhere: what a
broker would say of them is made up; the state topic is real.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mirror_core.decide import failback_plan as failback_decision
from mirror_core.decide import failover_plan as failover_decision
from mirror_core.decide.failback_plan import FailbackSnapshot, NewPrimary, OldSource
from mirror_core.decide.failover_plan import PlanDecision
from mirror_core.decide.mirror_snapshot import ClusterTopic, DestinationSnapshot, MirrorSnapshot, SourceSnapshot
from mirror_core.decide.steps import list_step_names
from mirror_core.decide.truncation import AllowedStrategies
from mirror_core.kafka.config import load_config
from mirror_core.model.mirror import Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import FenceAction, PendingFence
from mirror_core.model.run import FailbackStrategy, RunKind, RunMode, RunState, StepEvidence
from mirror_core.runbook.failback_conductor import Failback
from mirror_core.runbook.failover_conductor import Failover
from mirror_core.runbook.planned_steps import PlannedSteps
from mirror_core.runbook.promotion_steps import list_stopped_records
from mirror_core.runbook.run_services import local_services
from mirror_core.runbook.step_records import (
    DrainResult,
    FenceResult,
    GateResult,
    ProveResult,
    RecreatedTopic,
    RecreatedTopics,
    SalvageResult,
    read_output,
)
from mirror_core.state.journal import Journal
from mirror_core.state.mirror_link import MirrorLink, find_mirror_link
from mirror_core.state.state_records import PartitionRecord, State
from mirror_core.state.state_topic import read_state
from mirror_core.state.writer import StateWriter, make_control_id

TOPICS: Final = 10_000
PARTITIONS: Final = 50_000
NAME: Final = "large"
_SETTINGS: Final = {"cleanup.policy": "compact", "retention.ms": "604800000", "segment.bytes": "1073741824"}


def topic(number: int) -> str:
    return f"department.of.orders.stream-{number:05}"


def topic_id(number: int, side: str) -> str:
    return f"{side}{number:031x}"


def every_partition() -> Iterator[tuple[int, Partition]]:
    for number in range(PARTITIONS):
        yield number % TOPICS, Partition(topic(number % TOPICS), number // TOPICS)


def offsets(partitions: Iterable[Partition], shift: int = 0) -> dict[Partition, Offset]:
    """A log end for each, another one for each topic."""
    return {p: Offset(1_000_000_000 + int(p.topic[-5:]) + shift) for p in partitions}


def topics(side: str) -> dict[str, ClusterTopic]:
    return {topic(n): ClusterTopic(id=topic_id(n, side), partitions=PARTITIONS // TOPICS) for n in range(TOPICS)}


class Measured:
    """What actions take: seconds, of which this process worked so many, and how far it grew meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.worked: dict[str, float] = {}
        self._idle = self._now("VmRSS")

    @contextmanager
    def action(self, name: str) -> Iterator[None]:
        started, idle = time.monotonic(), time.process_time()
        yield
        self.seconds[name] = round(time.monotonic() - started, 2)
        self.worked[name] = round(time.process_time() - idle, 2)

    def show(self) -> None:
        mib = round((self._now("VmHWM") - self._idle) / 1024, 1)
        print(json.dumps({"mib": mib, "seconds": self.seconds, "worked": self.worked}))

    @staticmethod
    def _now(what: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what + ":"))


class LargeFailover(Failover):
    """A failover whose clusters are made up: both sides hold all topics, and nothing lags."""

    def _decide(self, state: State, choice: RunMode | None) -> PlanDecision:
        mirror = state.mirrors[self.link.mirror.name]
        statuses = state.partitions[mirror.name]
        return failover_decision.decide_failover(
            MirrorSnapshot(
                mirror=mirror,
                mode=choice or RunMode.PLANNED,
                statuses=statuses,
                source=SourceSnapshot(
                    cluster_id=mirror.source_id,
                    topics=topics("a"),
                    stable_ends=offsets(statuses),
                    authorizer=True,
                    transactions=(),
                ),
                destination=DestinationSnapshot(
                    cluster_id=mirror.destination_id, topics=topics("b"), positions=offsets(statuses), authorizer=True
                ),
                lease=None,
                active_run=None,
                grants=tuple(f"ALLOW WRITE ON TOPIC {topic(n)} TO User:app" for n in range(TOPICS)),
                forecast=None,
                now_ms=0,
            )
        )


class LargeFailback(Failback):
    """The way home, with a tail in every partition."""

    def _decide(self, state: State, choice: AllowedStrategies | None) -> PlanDecision:
        mirror = state.mirrors[self.link.mirror.name]
        statuses = state.partitions[mirror.name]
        return failback_decision.decide_failback(
            FailbackSnapshot(
                mirror=mirror,
                statuses=statuses,
                old_source=OldSource(
                    cluster_id=mirror.source_id, topics=topics("a"), log_ends=offsets(statuses, 7), fenced=True
                ),
                new_primary=NewPrimary(
                    cluster_id=mirror.destination_id, topics=topics("b"), log_ends=offsets(statuses, 9)
                ),
                active_runs=(),
                allowed_strategies=choice or AllowedStrategies(),
                pending_fence=PendingFence(
                    mirror=mirror.name,
                    cluster=mirror.source,
                    action=FenceAction.APPLY,
                    run="failover",
                    since_ms=1,
                    applied_at_ms=1,
                ),
            )
        )


class Stages:
    def __init__(self, config: Path, evidence: Path) -> None:
        self.link: MirrorLink = find_mirror_link(load_config(config), NAME)[0]
        self.services = local_services(config, evidence_dir=evidence)
        self.measured = Measured()

    @property
    def mirror(self) -> Mirror:
        return self.link.mirror

    def writer(self) -> StateWriter:
        return StateWriter(self.link.destination, make_control_id(self.mirror.name))

    def journal(self, writer: StateWriter, kind: RunKind) -> Journal:
        run = next(r for r in writer.state.runs.values() if r.plan.kind is kind)
        return Journal(writer, run.id, list_step_names(kind))

    def partitions(self) -> None:
        """As a data plane records them."""
        with self.writer() as writer, self.measured.action("partitions"):
            writer.put(
                *(
                    PartitionRecord(
                        self.mirror.name,
                        PartitionStatus(
                            partition=partition,
                            state=PartitionState.MIRRORING,
                            source_topic_id=topic_id(number, "a"),
                            destination_topic_id=topic_id(number, "b"),
                        ),
                    )
                    for number, partition in every_partition()
                )
            )

    def begin(self) -> None:
        failover = LargeFailover(self.link, self.services, started_by="large")
        with self.measured.action("plan"):
            found = failover.decide()
        assert found.reasons == (), found.reasons[:3]
        with self.measured.action("begin"):
            run = failover.begin(found.plan.hash)
        bound = [fact.name for fact in run.plan.bound_facts if fact.name.startswith("topic ")]
        assert len(bound) == TOPICS

    def steps(self) -> None:
        """Each step that leaves something, without its work."""
        with self.writer() as writer:
            ends = offsets(writer.state.partitions[self.mirror.name])
            journal = self.journal(writer, RunKind.FAILOVER)

            def take(step: str, act: Callable[[], StepEvidence]) -> None:
                with self.measured.action(step):
                    journal.perform(step, act)

            def kept(step: str, value: ProveResult | FenceResult | DrainResult | GateResult) -> StepEvidence:
                journal.save_checkpoint(step, value)
                return {"partitions": PARTITIONS}

            take("prove", lambda: kept("prove", ProveResult(ends=PartitionOffsets.from_mapping(ends), records=5)))
            take("fence", lambda: kept("fence", FenceResult(ends=PartitionOffsets.from_mapping(ends), authorizer=True)))
            take("drain", lambda: kept("drain", DrainResult(positions=PartitionOffsets.from_mapping(ends))))
            take("final_sync", dict)
            take("parity", lambda: kept("parity", GateResult(ends=PartitionOffsets.from_mapping(ends))))

    def record_lmo(self) -> None:
        with self.writer() as writer:
            journal, statuses = self.journal(writer, RunKind.FAILOVER), writer.state.partitions[self.mirror.name]

            def act() -> StepEvidence:
                assert read_output(journal, "prove", ProveResult).ends.to_mapping() == offsets(statuses)
                writer.put(*list_stopped_records(self.mirror, statuses, offsets(statuses)))
                return {"partitions": PARTITIONS}

            with self.measured.action("record_lmo"):
                journal.perform("record_lmo", act)

    def report(self) -> None:
        with self.writer() as writer:
            journal = self.journal(writer, RunKind.FAILOVER)
            for name in ("promote", "switch", "canary"):
                journal.perform(name, dict)
            with self.measured.action("report"):
                journal.perform("report", PlannedSteps(self.link, self.services, writer, journal).report)
            with self.measured.action("end"):
                journal.end(RunState.DONE)

    def failback(self) -> None:
        failback = LargeFailback(self.link, self.services, started_by="large")
        with self.measured.action("plan"):
            found = failback.decide()
        assert found.reasons == (), found.reasons[:3]
        with self.measured.action("begin"):
            run = failback.begin(found.plan.hash)
        assert set(run.plan.strategies.values()) == {FailbackStrategy.RECREATE}
        assert run.plan.discarded == 7 * PARTITIONS

    def failback_steps(self) -> None:
        with self.writer() as writer:
            journal = self.journal(writer, RunKind.FAILBACK)
            with self.measured.action("salvage"):
                ends = offsets(writer.state.partitions[self.mirror.name], 7)
                journal.save_checkpoint("salvage", SalvageResult(ends=PartitionOffsets.from_mapping(ends)))
            with self.measured.action("align"):
                journal.save_checkpoint(
                    "align",
                    RecreatedTopics(
                        topics=tuple(
                            RecreatedTopic(name=topic(n), id=topic_id(n, "a"), replication_factor=3, settings=_SETTINGS)
                            for n in range(TOPICS)
                        )
                    ),
                )

    def read(self) -> None:
        """Everything is there, as another process finds it."""
        with self.measured.action("read"):
            state = read_state(self.link.destination)
        statuses = state.partitions[self.mirror.name]
        assert len(statuses) == PARTITIONS
        lmo = {p: s.lmo for p, s in statuses.items() if s.state is PartitionState.STOPPED}
        assert lmo == offsets(statuses)
        runs = {r.plan.kind: r for r in state.runs.values()}
        assert (runs[RunKind.FAILOVER].state, runs[RunKind.FAILBACK].state) == (RunState.DONE, RunState.RUNNING)
        assert all(run.plan.hash == run.plan_hash for run in runs.values())
        journal = Journal(_ReadOnly(state), runs[RunKind.FAILBACK].id, list_step_names(RunKind.FAILBACK))
        assert read_output(journal, "salvage", SalvageResult).ends.to_mapping() == offsets(statuses, 7)
        assert [t.name for t in read_output(journal, "align", RecreatedTopics).topics] == [
            topic(n) for n in range(TOPICS)
        ]


class _ReadOnly:
    def __init__(self, state: State) -> None:
        self.state = state

    def put(self, *records: object) -> None:
        raise AssertionError("only reads")

    def now_ms(self) -> int:
        raise AssertionError("only reads")

    def refresh(self) -> State:
        return self.state


STAGES: Final = ("partitions", "begin", "steps", "record_lmo", "report", "failback", "failback_steps", "read")

if __name__ == "__main__":
    stages = Stages(Path(sys.argv[2]), Path(sys.argv[3]))
    getattr(stages, sys.argv[1])()
    stages.measured.show()
