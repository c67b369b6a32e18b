"""What a run came to: who can write where, what is pending, the next command."""

from __future__ import annotations

from dataclasses import replace

from mirror_core.decide.closing import (
    Ended,
    closing,
    home_not_begun,
    led_home,
    newest,
    not_begun,
    overtaken,
    unknown,
)
from mirror_core.decide.reckoning import not_copied
from mirror_core.kafka.acls import AuthorizerOff, describe_acls
from mirror_core.kafka.client import ClusterClient
from mirror_core.model.acl import AclPurpose
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError
from mirror_core.model.limits import LIMITS
from mirror_core.model.mirror import PartitionState, is_fresh
from mirror_core.model.names import reverse_name
from mirror_core.model.run import Mode, Run, RunState, StepState
from mirror_core.state.link import Link, link_of
from mirror_core.state.pulse import conducted
from mirror_core.state.records import State
from mirror_core.state.topic import read_state
from mirror_core.state.turning import turned, waits_for_word


def last_words(link: Link, run: Run) -> tuple[str, ...]:
    """Read the status from the destination. Never fails: unknown is reported."""
    try:
        state = read_state(link.destination, timeout_s=LIMITS.planned_state_s)
    except MirrorError:
        return unknown(link.mirror)
    return words_of(link, state, run.id)


def words_of(link: Link, state: State, run_id: str) -> tuple[str, ...]:
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
            returned=awaits_word(state, run),
            lifted_denials=_count_lifted_denials(link, state, run),
        )
    )


def _count_lifted_denials(link: Link, state: State, run: Run) -> int:
    fence = state.steps.get((run.id, "fence"))
    if run.state is not RunState.RUNNING or run.plan.mode is not Mode.PLANNED or turned(state, run):
        return 0
    ledger = (e for e in state.ledger_of(run.plan.mirror) if e.cluster == link.source.name)
    denials = {e.acl for e in ledger if e.purpose is AclPurpose.FENCE}
    if not denials or fence is None or fence.state is not StepState.DONE:
        return 0
    try:
        with ClusterClient(link.source, timeout_s=LIMITS.planned_answer_s) as client:
            held = describe_acls(client)
    except MirrorError:
        return 0
    return 0 if isinstance(held, AuthorizerOff) else len(denials - held.entries)


def how_it_stands(link: Link, run_id: str | None) -> tuple[str, ...]:
    """For a task's log, with a failback's reverse failover. `run_id` None: nothing was begun."""
    try:
        state = read_state(link.destination, timeout_s=LIMITS.planned_state_s)
    except MirrorError:
        return unknown(link.mirror)
    run = newest(link.mirror.name, state.runs.values()) if run_id is None else state.runs.get(run_id)
    words = (*words_of(link, state, run.id), *_way_home(link, state, run)) if run else ()
    if run_id is None:
        return not_begun(state.mirrors.get(link.mirror.name, link.mirror), run, words)
    return words or unknown(link.mirror)


def awaits_word(state: State, run: Run) -> bool:
    """Whether the run waits for confirmation. Not if everything on the source was copied."""
    name = run.plan.mirror
    debt = state.debts.get(name)
    if not waits_for_word(state, run):
        return False
    return debt is None or debt.paid_ms is None or any(not_copied(debt, state.partitions.get(name, {})))


def _way_home(link: Link, state: State, run: Run) -> tuple[str, ...]:
    if not led_home(run, state.steps_of(run)):
        return ()
    back, mirror = reverse_name(link.mirror.name), link.mirror
    try:
        there = read_state(link.source, timeout_s=LIMITS.planned_state_s)
    except MirrorError:
        return unknown(replace(mirror, name=back, source=mirror.destination, destination=mirror.source))
    home = newest(back, (one for one in there.runs.values() if one.homecoming == run.id))
    if home is None or back not in there.mirrors:
        return home_not_begun(mirror)
    return words_of(link_of(link.config, there.mirrors[back]), there, home.id)
