"""`mirrorbook failover plan-set` and `run-set`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mirror_core.cli import completing
from mirror_core.cli.common import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    YesOption,
    load_configuration,
    print_json,
    require_confirmation,
)
from mirror_core.cli.conducting import (
    CompareRunner,
    EvidenceOption,
    GateLimitOption,
    HashOption,
    MasterOption,
    NoPauseOption,
    RunnerByModeOption,
    TakeOverOption,
    choose_runner,
    make_conductor,
    make_own_approval,
)
from mirror_core.cli.documents import PlanDocument, RunDocument, to_plan_document, to_run_document
from mirror_core.cli.runs import print_plan
from mirror_core.cli.spark_conf import SparkConfOption
from mirror_core.cli.telling import print_line, print_line_or_continue
from mirror_core.decide.approvals import explain_unseen_approval
from mirror_core.decide.vouching import check_as_copied
from mirror_core.model.documents import JsonDocument, prints_json
from mirror_core.model.errors import Refused
from mirror_core.model.run import RunMode, shorten_hash
from mirror_core.runbook.closing import read_run_outcome
from mirror_core.runbook.failover import Failover
from mirror_core.runbook.set_runs import SetPlan, find_set
from mirror_core.runbook.sets import SetFailover
from mirror_core.state.link import find_mirror_link

SetModeOption = Annotated[RunMode, typer.Option("--mode", help="planned: the sources live. unplanned: they are lost.")]
SetArgument = Annotated[
    str,
    typer.Argument(
        metavar="SET", help="A set of mirrors, from section `sets:`.", autocompletion=completing.complete_sets
    ),
]


class SetPlansDocument(JsonDocument, frozen=True, kw_only=True):
    """A failover of a set now."""

    set: str
    hash: str
    """Hash of all plans."""
    plans: tuple[PlanDocument, ...]
    refused: tuple[str, ...]
    """Why they may not run."""


class SetRunsDocument(JsonDocument, frozen=True, kw_only=True):
    """A set failover's runs, one per mirror."""

    set: str
    """Id of the set failover."""
    runs: tuple[RunDocument, ...]


@prints_json(SetPlansDocument)
def plan_set(
    name: SetArgument, mode: SetModeOption = RunMode.PLANNED, config: ConfigOption = None, as_json: JsonOption = False
) -> None:
    """What a failover of all mirrors of the set would do now. Exit code 3 when it may not be run."""
    set_plan = _make_set_failover(name, config, mode).decide()
    _print_set_plan(name, set_plan, as_json=as_json)
    if set_plan.reasons:
        raise Refused(f"these plans cannot be run: failover of set {name}", set_plan.reasons)


@prints_json(SetRunsDocument, SetPlansDocument)
def run_set(
    name: SetArgument,
    mode: SetModeOption = RunMode.PLANNED,
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
    options: dict[str, Any] = {"evidence": evidence, "conf": conf, "gate_limit": gate_limit}
    set_failover = _make_set_failover(name, config, mode, choose_runner(mode, runner), master, quiet=as_json, **options)
    attempt = set_failover.find_active_attempt()
    if attempt is None:
        if (unbegun_attempt := set_failover.find_unbegun_attempt()) and not dry_run:
            _refuse_conducted_set(set_failover, unbegun_attempt, take_over=take_over)
            require_confirmation(
                f"{unbegun_attempt} was cut off while it began, and nothing was done: give it up?", yes
            )
            set_failover.abort(unbegun_attempt, only_mine=False)
        set_plan = set_failover.decide()
        if not as_json or dry_run:
            _print_set_plan(name, set_plan, as_json=as_json)
        if reasons := (*set_plan.reasons, *set_plan.find_hash_mismatch(plan_hash)):
            raise Refused(f"failover of set {name}", reasons)
        if dry_run:
            return
        _refuse_unseen_sources(set_failover, set_plan, plan_hash, yes=yes)
        given_up = " without their sources, losing what was not copied" if mode is RunMode.UNPLANNED else ""
        require_confirmation(
            f"Run plans {shorten_hash(set_plan.hash)}: move applications of {', '.join(set_plan.decisions)}{given_up}?",
            yes,
        )
        attempt = set_failover.begin(
            set_plan.hash, approved_by=(make_own_approval(set_failover.started_by),), silent=set_plan.silent
        )
    else:
        if not as_json:
            print_line(f"{attempt} has not ended: " + "; ".join(set_failover.format_phases(attempt)))
        if dry_run:
            return
        _refuse_conducted_set(set_failover, attempt, take_over=take_over)
        require_confirmation(
            f"Go on with {attempt}? A process that waits with it, for an answer or another mirror, loses it", yes
        )
    must_ask = mode is RunMode.PLANNED and not (no_pause or yes) and set_failover.is_undisturbed(attempt)
    if must_ask:
        _prove_and_confirm_set(name, set_failover, attempt)
        set_failover.refuse_conducted(attempt, quietly=True)
    members = set_failover.finish(attempt, agreed_by=set_failover.started_by if must_ask else "")
    if as_json:
        runs = tuple(to_run_document(s.run, s.steps, None) for s in members.values())
        print_json(SetRunsDocument(set=attempt, runs=runs))
    else:
        print_line(f"{attempt}: " + "; ".join(set_failover.format_phases(attempt)))
        for mirror, member in members.items():
            for line in read_run_outcome(set_failover.get_link(mirror), member.run):
                print_line(f"{mirror}: {line}")
    check_as_copied(*((member.run.id, member.steps) for member in members.values()))


def _refuse_unseen_sources(set_failover: SetFailover, set_plan: SetPlan, plan_hash: str | None, *, yes: bool) -> None:
    """Refused if a bare hash would give up sources that answer."""
    given_up = set_plan.decisions if set_failover.mode is RunMode.UNPLANNED else ()
    answering = sorted({set_failover.get_link(name).source.name for name in given_up if name not in set_plan.silent})
    if reasons := explain_unseen_approval(plan_hash, answering, yes=yes):
        raise Refused(f"failover of set {set_failover.mirror_set.name}", reasons)


def _refuse_conducted_set(set_failover: SetFailover, attempt: str, *, take_over: bool) -> None:
    if not take_over:
        set_failover.refuse_conducted(attempt, take_over=True)


def _prove_and_confirm_set(name: str, set_failover: SetFailover, attempt: str) -> None:
    """Prove all, then ask to fence. After a no the runs wait."""
    for mirror, member in set_failover.prove(attempt).items():
        for record in member.steps:
            evidence_text = ", ".join(f"{key} {value}" for key, value in record.evidence.items())
            print_line_or_continue(f"{mirror}: {record.step}: {evidence_text}")
    mirrors = ", ".join(set_failover.mirror_set.mirrors)
    try:
        require_confirmation(f"Fence now? Applications of {mirrors} can't write until they are moved", False)
    except Refused:
        advice = (
            f"{attempt} waits: `mirrorbook failover run-set {name}` asks again, `failover abort` of each gives it up"
        )
        raise Refused(f"failover of set {name}", [f"cancelled. {advice}"]) from None


def _make_set_failover(
    name: str,
    config: Path | None,
    mode: RunMode,
    runner: CompareRunner = CompareRunner.LOCAL,
    master: str = "local[*]",
    *,
    quiet: bool = False,
    **options: Any,
) -> SetFailover:
    loaded = load_configuration(config)
    mirror_set = find_set(loaded, name)
    conductors = {
        mirror: make_conductor(
            Failover, find_mirror_link(loaded, mirror)[0], runner, master, quiet=quiet, prefix=mirror, **options
        )
        for mirror in mirror_set.mirrors
    }
    return SetFailover(
        mirror_set, conductors, mode, print_line=(lambda line: None) if quiet else print_line_or_continue
    )


def _print_set_plan(name: str, set_plan: SetPlan, *, as_json: bool) -> None:
    if as_json:
        plans = tuple(to_plan_document(decision.plan, decision.reasons) for decision in set_plan.decisions.values())
        print_json(SetPlansDocument(set=name, hash=set_plan.hash, plans=plans, refused=set_plan.reasons))
        return
    for decision in set_plan.decisions.values():
        print_plan(decision.plan, decision.reasons, as_json=False)
    print_line(f"hash of all plans of set {name}: {set_plan.hash}")
