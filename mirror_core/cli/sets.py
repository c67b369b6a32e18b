"""`mirrorbook failover plan-set` and `run-set`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mirror_core.cli import completing
from mirror_core.cli.common import ConfigOption, DryRunOption, JsonOption, YesOption, agree, configuration, print_json
from mirror_core.cli.conducting import (
    EvidenceOption,
    GateLimitOption,
    HashOption,
    MasterOption,
    NoPauseOption,
    Runner,
    RunnerByModeOption,
    TakeOverOption,
    approval_of,
    conductor,
    runner_for,
)
from mirror_core.cli.documents import PlanDocument, RunDocument, plan_document, run_document
from mirror_core.cli.runs import show_plan
from mirror_core.cli.spark_conf import SparkConfOption
from mirror_core.cli.telling import tell, tell_on
from mirror_core.decide.approvals import approved_unseen
from mirror_core.decide.vouching import refuse_other
from mirror_core.model.documents import Document, prints
from mirror_core.model.errors import Refused
from mirror_core.model.run import Mode, short_hash
from mirror_core.runbook.closing import last_words
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.set_runs import Joint, set_named
from mirror_core.runbook.sets import Together
from mirror_core.state.link import find

ModeOption = Annotated[Mode, typer.Option("--mode", help="planned: the sources live. unplanned: they are lost.")]
SetArgument = Annotated[
    str, typer.Argument(metavar="SET", help="A set of mirrors, from section `sets:`.", autocompletion=completing.sets)
]


class SetPlansDocument(Document, frozen=True, kw_only=True):
    """A failover of a set now."""

    set: str
    hash: str
    """Hash of all plans."""
    plans: tuple[PlanDocument, ...]
    refused: tuple[str, ...]
    """Why they may not run."""


class SetRunsDocument(Document, frozen=True, kw_only=True):
    """A set failover's runs, one per mirror."""

    set: str
    """Id of the set failover."""
    runs: tuple[RunDocument, ...]


@prints(SetPlansDocument)
def plan_set(
    name: SetArgument, mode: ModeOption = Mode.PLANNED, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What a failover of all mirrors of the set would do now. Exit code 3 when it may not be run."""
    joint = _together(name, config, mode).decide()
    _show(name, joint, as_json=as_json)
    if joint.reasons:
        raise Refused(f"these plans cannot be run: failover of set {name}", joint.reasons)


@prints(SetRunsDocument, SetPlansDocument)
def run_set(
    name: SetArgument,
    mode: ModeOption = Mode.PLANNED,
    plan_hash: HashOption = None,
    runner: RunnerByModeOption = None,
    master: MasterOption = "local[*]",
    evidence: EvidenceOption = None,
    conf: SparkConfOption = None,
    config: ConfigOption = None,
    no_pause: NoPauseOption = False,
    gate_limit: GateLimitOption = None,
    take_over: TakeOverOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show all plans, ask once, prove, ask at that moment, and move all mirrors of the set. One that was begun before
    and has not ended is gone on with, unless somebody conducts it."""
    equipped: dict[str, Any] = {"evidence": evidence, "conf": conf, "gate_limit": gate_limit}
    together = _together(name, config, mode, runner_for(mode, runner), master, quiet=as_json, **equipped)
    attempt = together.under_way()
    if attempt is None:
        if (cut_off := together.cut_off()) and not dry_run:
            _refuse_conducted(together, cut_off, take_over=take_over)
            agree(f"{cut_off} was cut off while it began, and nothing was done: give it up?", yes)
            together.abort(cut_off, only_mine=False)
        joint = together.decide()
        if not as_json or dry_run:
            _show(name, joint, as_json=as_json)
        if reasons := (*joint.reasons, *joint.other_than(plan_hash)):
            raise Refused(f"failover of set {name}", reasons)
        if dry_run:
            return
        _refuse_unseen(together, joint, plan_hash, yes=yes)
        given_up = " without their sources, losing what was not copied" if mode is Mode.UNPLANNED else ""
        agree(f"Run plans {short_hash(joint.hash)}: move applications of {', '.join(joint.decisions)}{given_up}?", yes)
        attempt = together.begin(joint.hash, approved_by=(approval_of(together.started_by),), silent=joint.silent)
    else:
        if not as_json:
            tell(f"{attempt} has not ended: " + "; ".join(together.told(attempt)))
        if dry_run:
            return
        _refuse_conducted(together, attempt, take_over=take_over)
        agree(f"Go on with {attempt}? A process that waits with it, for an answer or another mirror, loses it", yes)
    asked = mode is Mode.PLANNED and not (no_pause or yes) and together.undisturbed(attempt)
    if asked:
        _ask(name, together, attempt)
        together.refuse_conducted(attempt, quietly=True)
    ended = together.finish(attempt, agreed_by=together.started_by if asked else "")
    if as_json:
        runs = tuple(run_document(s.run, s.steps, None) for s in ended.values())
        print_json(SetRunsDocument(set=attempt, runs=runs))
    else:
        tell(f"{attempt}: " + "; ".join(together.told(attempt)))
        for mirror, standing in ended.items():
            for line in last_words(together.link(mirror), standing.run):
                tell(f"{mirror}: {line}")
    refuse_other(*((standing.run.id, standing.steps) for standing in ended.values()))


def _refuse_unseen(together: Together, joint: Joint, plan_hash: str | None, *, yes: bool) -> None:
    """Refused if a bare hash would give up sources that answer."""
    given_up = joint.decisions if together.mode is Mode.UNPLANNED else ()
    answering = sorted({together.link(name).source.name for name in given_up if name not in joint.silent})
    if reasons := approved_unseen(plan_hash, answering, yes=yes):
        raise Refused(f"failover of set {together.chosen.name}", reasons)


def _refuse_conducted(together: Together, attempt: str, *, take_over: bool) -> None:
    if not take_over:
        together.refuse_conducted(attempt, take_over=True)


def _ask(name: str, together: Together, attempt: str) -> None:
    """Prove all, then ask to fence. After a no the runs wait."""
    for mirror, standing in together.prove(attempt).items():
        for record in standing.steps:
            words = ", ".join(f"{key} {value}" for key, value in record.evidence.items())
            tell_on(f"{mirror}: {record.step}: {words}")
    mirrors = ", ".join(together.chosen.mirrors)
    try:
        agree(f"Fence now? Applications of {mirrors} can't write until they are moved", False)
    except Refused:
        wait = f"{attempt} waits: `mirrorbook failover run-set {name}` asks again, `failover abort` of each gives it up"
        raise Refused(f"failover of set {name}", [f"cancelled. {wait}"]) from None


def _together(
    name: str,
    config: Path | None,
    mode: Mode,
    runner: Runner = Runner.LOCAL,
    master: str = "local[*]",
    *,
    quiet: bool = False,
    **equipped: Any,
) -> Together:
    loaded = configuration(config)
    chosen = set_named(loaded, name)
    conductors = {
        mirror: conductor(Failover, find(loaded, mirror)[0], runner, master, quiet=quiet, prefix=mirror, **equipped)
        for mirror in chosen.mirrors
    }
    return Together(chosen, conductors, mode, say=(lambda line: None) if quiet else tell_on)


def _show(name: str, joint: Joint, *, as_json: bool) -> None:
    if as_json:
        plans = tuple(plan_document(decision.plan, decision.reasons) for decision in joint.decisions.values())
        print_json(SetPlansDocument(set=name, hash=joint.hash, plans=plans, refused=joint.reasons))
        return
    for decision in joint.decisions.values():
        show_plan(decision.plan, decision.reasons, as_json=False)
    tell(f"hash of all plans of set {name}: {joint.hash}")
