"""What a conductor does with a mirror of 50,000 partitions, in a process of its own that measures itself.

    python -m tests.unit.large_run CONFIG [TOPICS]

Both sides are observed for a plan of either mode, the plan is decided, and a run's journal is written with all that its
steps leave there, and read back by somebody who starts from nothing. Prints seconds of each action and the most that
the process held resident, as JSON. The clusters are generated (`tests.generated`).
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

from mirror_core.decide.failover import Decision, decide
from mirror_core.decide.steps import names
from mirror_core.decide.view import DestinationView, SourceView
from mirror_core.evidence.run_report import write_run_report
from mirror_core.kafka.config import load_config
from mirror_core.model.checkpoint import Keepable
from mirror_core.model.garbage import seek_seldom
from mirror_core.model.names import Offset
from mirror_core.model.offsets import Offsets
from mirror_core.model.run import Evidence, Mode, Run
from mirror_core.runbook.checkpoints import Drained, Equal, Fenced, Proven
from mirror_core.runbook.observe import observe
from mirror_core.runbook.promotion import stopped
from mirror_core.state.journal import Journal, begun, checkpoint, kept_in
from mirror_core.state.link import Link, link_of
from mirror_core.state.records import State
from tests.generated import END
from tests.memory import MemoryLog, run_of
from tests.unit.large_plan import MIRROR, TOPICS, WIDTH, Measured, recorded


class Kept(MemoryLog):
    """With all that was written, as it lies in the topic."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.rows: dict[str, bytes | None] = {}

    def put(self, *records: object) -> None:
        for record in records:
            for key, value in list(self.state.rows(record)):  # type: ignore[arg-type]
                self.rows[key] = value
                self.state.apply(key, value)


def planned(link: Link, state: State, mode: Mode) -> Decision:
    view = observe(link, state, mode)
    assert isinstance(view.source, SourceView), view.source
    assert isinstance(view.destination, DestinationView), view.destination
    assert len(view.source.stable_ends) == len(view.destination.positions) == len(view.statuses)
    found = decide(view)
    assert found.reasons == (), found.reasons
    return found


def journalled(log: Kept, found: Decision) -> Run:
    """All that the steps of a planned failover leave behind of each partition."""
    plan = found.plan
    run = run_of("large-1", plan)
    log.put(run, begun(log.state, run), checkpoint(run.id, "begin", found.scope))
    ends = Offsets.of({p: Offset(END["a"]) for p in found.scope.drained})
    left: dict[str, Keepable] = {
        "prove": Proven(ends=ends, records=1),
        "fence": Fenced(ends=ends, authorizer=True),
        "drain": Drained(positions=ends),
        "parity": Equal(ends=ends),
    }
    steps = names(plan.kind, plan.mode)
    journal = Journal(log, run.id, steps)

    def act(step: str) -> Evidence:
        if step in left:
            journal.keep(step, left[step])
        elif step == "record_lmo":
            mirror = log.state.mirrors[MIRROR.name]
            log.put(*stopped(mirror, log.state.partitions[MIRROR.name], ends.by_partition()))
        return {"partitions": len(found.scope.drained)}

    for step in steps:
        journal.perform(step, partial(act, step))
    return journal.run


def read_back(log: Kept, run: Run) -> State:
    state = State()
    for key, value in log.rows.items():
        state.apply(key, value)
    drained = kept_in(state, run.id, "drain", Drained)
    assert drained is not None
    assert len(drained.positions.by_partition()) == len(state.partitions[MIRROR.name])
    assert all(status.lmo == END["a"] for status in state.partitions[MIRROR.name].values())
    return state


def main(config: Path, topics: int) -> None:
    seek_seldom()  # as the command line does
    measured, state = Measured(time.monotonic), recorded(topics)
    link = link_of(load_config(config), MIRROR)
    for mode in (Mode.UNPLANNED, Mode.PLANNED):
        with measured.action(f"{mode} plan"):
            found = planned(link, state, mode)
    assert len(found.scope.drained) == topics * WIDTH
    log = Kept(state)
    with measured.action("journal"):
        run = journalled(log, found)
    with measured.action("read back"):
        back = read_back(log, run)
    with measured.action("report"):
        steps = [back.steps[run.id, step] for step in names(run.plan.kind, run.plan.mode)]
        folder = config.parent / "run"
        folder.mkdir(exist_ok=True)
        write_run_report(folder, run, steps, back.partitions[MIRROR.name], {}, sides=("east", "west"), told=())
    measured.show()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else TOPICS)
