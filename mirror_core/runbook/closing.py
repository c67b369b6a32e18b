"""The last words of a run, read from the state that its mirror's destination holds."""

from __future__ import annotations

from mirror_core.decide.closing import Ended, closing, overtaken, unknown
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import PartitionState, is_fresh
from mirror_core.model.run import Run
from mirror_core.state.link import Link
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State
from mirror_core.state.topic import read_state
from mirror_core.state.turning import turned


def last_words(link: Link, run: Run) -> tuple[str, ...]:
    """Who can write where, what is pending, and which command is next. Never fails: what is not known is said."""
    try:
        state = read_state(link.destination, timeout_s=LIMITS.planned_state_s)
    except MirrorError:
        return unknown(link.mirror)
    return words_of(link, state, run.id)


def words_of(link: Link, state: State, run_id: str) -> tuple[str, ...]:
    """The same of a state that was read."""
    name = link.mirror.name
    run = state.runs.get(run_id)
    if run is None:
        return unknown(link.mirror)
    if said := overtaken(run, state.runs.values()):
        return said
    return closing(
        Ended(
            run=run,
            steps=state.steps_of(run),
            mirror=state.mirrors.get(name, link.mirror),
            debt=state.debts.get(name),
            turned=turned(state, run),
            copying=is_fresh(state.leases.get(name), now_ms()),
            failed=[s for s in state.partitions.get(name, {}).values() if s.state is PartitionState.FAILED],
            conducted=conducted(state, run),
        )
    )
