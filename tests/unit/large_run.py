"""What a conductor does with a mirror of 50,000 partitions, in a process of its own that measures itself.

    python -m tests.unit.large_run CONFIG [TOPICS]

Both sides are observed for a plan of either mode, the plan is decided, and a run's journal is written with all that its
steps leave there, and read back by somebody who starts from nothing. Prints CPU seconds of each action and the most
that the process held resident, as JSON. The clusters are generated (`tests.support.generated_cluster`).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from mirror_core.decide.failover_plan import PlanDecision, decide_failover
from mirror_core.decide.mirror_snapshot import DestinationSnapshot, SourceSnapshot
from mirror_core.decide.steps import list_step_names
from mirror_core.evidence.run_report import write_run_report
from mirror_core.kafka.config import load_config
from mirror_core.model.gc_tuning import reduce_gc_frequency
from mirror_core.model.names import Offset, PartitionOffsets
from mirror_core.model.run import Run, RunMode, StepEvidence
from mirror_core.model.run_checkpoints import StepValue
from mirror_core.model.source_observation import SourceObservation, observe_ends
from mirror_core.model.timing import now_ms
from mirror_core.runbook.promotion_steps import list_stopped_records
from mirror_core.runbook.snapshot_reader import take_snapshot
from mirror_core.runbook.step_records import DrainResult, FenceResult, GateResult, ProveResult
from mirror_core.state.journal import Journal, load_checkpoint, make_begin_entry, make_checkpoint
from mirror_core.state.mirror_link import MirrorLink, make_mirror_link
from mirror_core.state.state_records import State
from tests.support.generated_cluster import END
from tests.support.memory_state import MemoryLog, run_of
from tests.unit.large_plan import MIRROR, TOPICS, WIDTH, Measured, recorded


class Kept(MemoryLog):
    """With all that was written, as it lies in the topic."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.rows: dict[str, bytes | None] = {}

    def put(self, *records: object) -> None:
        for record in records:
            for key, value in list(self.state.to_rows(record)):  # type: ignore[arg-type]
                self.rows[key] = value
                self.state.apply(key, value)


def observed(state: State) -> SourceObservation:
    """All partitions lag; each copy was complete a minute ago, and tasks have reported all that it holds."""
    partitions, at_ms = state.partitions[MIRROR.name], now_ms()
    observation = observe_ends(MIRROR.name, dict.fromkeys(partitions, Offset(END["a"])), age_ms=0, now_ms=at_ms)
    complete = tuple((index, 60_000, END["b"]) for index in range(WIDTH))
    topics = tuple(
        replace(topic, recovery_points=complete)
        for topic in observation.with_reported_ends(dict.fromkeys(partitions, END["b"])).topics
    )
    return replace(observation, topics=topics, listed_ms=at_ms, transactions_ms=at_ms)


def planned(link: MirrorLink, state: State, mode: RunMode) -> PlanDecision:
    view = take_snapshot(link, state, mode)
    assert isinstance(view.source, SourceSnapshot), view.source
    assert isinstance(view.destination, DestinationSnapshot), view.destination
    assert len(view.source.stable_ends) == len(view.destination.positions) == len(view.statuses)
    found = decide_failover(view)
    assert found.reasons == (), found.reasons
    return found


def journalled(log: Kept, found: PlanDecision) -> Run:
    """All that the steps of a planned failover leave behind of each partition."""
    plan = found.plan
    run = run_of("large-1", plan)
    log.put(run, make_begin_entry(log, run), make_checkpoint(run.id, "begin", found.scope))
    ends = PartitionOffsets.from_mapping({p: Offset(END["a"]) for p in found.scope.drained})
    left: dict[str, StepValue] = {
        "prove": ProveResult(ends=ends, records=1),
        "fence": FenceResult(ends=ends, authorizer=True),
        "drain": DrainResult(positions=ends),
        "parity": GateResult(ends=ends),
    }
    steps = list_step_names(plan.kind, plan.mode)
    journal = Journal(log, run.id, steps)

    def act(step: str) -> StepEvidence:
        if step in left:
            journal.save_checkpoint(step, left[step])
        elif step == "record_lmo":
            mirror = log.state.mirrors[MIRROR.name]
            log.put(*list_stopped_records(mirror, log.state.partitions[MIRROR.name], ends.to_mapping()))
        return {"partitions": len(found.scope.drained)}

    for step in steps:
        journal.perform(step, partial(act, step))
    return journal.run


def read_back(log: Kept, run: Run) -> State:
    state = State()
    for key, value in log.rows.items():
        state.apply(key, value)
    drained = load_checkpoint(state, run.id, "drain", DrainResult)
    assert drained is not None
    assert len(drained.positions.to_mapping()) == len(state.partitions[MIRROR.name])
    assert all(status.lmo == END["a"] for status in state.partitions[MIRROR.name].values())
    return state


def main(config: Path, topics: int) -> None:
    reduce_gc_frequency()  # as the command line does
    measured, state = Measured(), recorded(topics)
    state.source_observations[MIRROR.name] = observed(state)
    link = make_mirror_link(load_config(config), MIRROR)
    for mode in (RunMode.UNPLANNED, RunMode.PLANNED):
        with measured.action(f"{mode} plan"):
            found = planned(link, state, mode)
    assert len(found.scope.drained) == topics * WIDTH
    log = Kept(state)
    with measured.action("journal"):
        run = journalled(log, found)
    with measured.action("read back"):
        back = read_back(log, run)
    with measured.action("report"):
        steps = [back.steps[run.id, step] for step in list_step_names(run.plan.kind, run.plan.mode)]
        folder = config.parent / "run"
        folder.mkdir(exist_ok=True)
        write_run_report(folder, run, steps, back.partitions[MIRROR.name], {}, sides=("east", "west"), chronicle=())
    measured.show()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else TOPICS)
