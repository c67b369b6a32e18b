"""`mirrorbook cluster`, and `mirrorbook guard`, which brokers run before they start."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    NameArgument,
    YesOption,
    complete_clusters,
    find_operator,
    load_configuration,
    print_facts,
    print_json,
    require_confirmation,
    require_typed_name,
)
from mirror_core.cli.output import print_line
from mirror_core.cli.tables import print_table
from mirror_core.decide.fence_state import BrokerStartGate
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.evidence.fence_file import FenceFile, read_fence_file
from mirror_core.mirrors.fence_manual_commands import LiftPreview, check_start, lift_by_file, preview_lift
from mirror_core.mirrors.preflight import ClusterCheck, RightCheck, RightStatus
from mirror_core.mirrors.preflight import check_cluster as check_cluster
from mirror_core.model.acl import Permission
from mirror_core.model.errors import Indeterminate, MissingPermission, Refused, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import JsonDocument, prints_json
from mirror_core.model.run import RunKind
from mirror_core.model.text import format_count, format_time
from mirror_core.rights.first_acl import FirstAclEffect
from mirror_core.state.point_of_no_return import find_holding_run


class UnfenceDocument(JsonDocument, frozen=True, kw_only=True):
    """A run's fence on a cluster, and whether it was lifted."""

    cluster: str
    run: str
    mirror: str
    destination: str
    """Where applications were to move."""
    destination_answers: bool
    written_ms: int
    """By the run's clock."""
    topics: tuple[str, ...]
    transactional_ids: tuple[str, ...]
    by_command: bool
    """Fenced by the cluster's own command, without ACLs."""
    denials_found: int
    """The fence's denials found before the lift."""
    warnings: tuple[str, ...]
    lifted: bool
    """False: dry run."""


@prints_json(UnfenceDocument)
def unfence(
    name: Annotated[str, typer.Argument(help="The cluster that is fenced.", autocompletion=complete_clusters)],
    file: Annotated[Path, typer.Option("--from", help="The run's file unfence-RUN.json, in its evidence folder.")],
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Lift the fence of a failover whose destination died before it was promoted. Needs this cluster and the file.

    Exit code 3 when the destination answers and was promoted, or another cluster is silent.
    """
    loaded = load_configuration(config)
    cluster, fence = loaded.cluster(name), read_fence_file(file)
    outlook = preview_lift(loaded, cluster, fence, file.absolute())
    for line in () if as_json and dry_run else _format_plan(name, fence, outlook):
        print_line(line, err=as_json)
    trouble: tuple[str, ...] = ()
    if outlook.promotion is not None and (yes or dry_run):
        raise Refused(f"run {fence.run}: its fence on {name} is not lifted without the name typed", [outlook.promotion])
    if not dry_run:
        if outlook.promotion is None:
            require_confirmation(f"Lift the fence of run {fence.run}: let applications write on {name} again?", yes)
        else:
            require_typed_name(name, False)
        trouble = lift_by_file(loaded, cluster, fence, file.absolute(), lifted_by=find_operator())
    if as_json:
        print_json(_to_unfence_document(name, fence, outlook, trouble, is_done=not dry_run))
    elif not dry_run:
        for line in (*(f"warning: {warning}" for warning in trouble), *_format_done(name, fence, outlook)):
            print_line(line)


def _format_plan(name: str, fence: FenceFile, outlook: LiftPreview) -> list[str]:
    topics = f"{format_count(len(fence.topics), 'topic')}{_format_names(fence.topics)}"
    ids = f"{format_count(len(fence.transactional_ids), 'transactional id')}{_format_names(fence.transactional_ids)}"
    purpose = "while applications write on " if fence.kind is RunKind.FAILBACK else "to move to "
    fenced = f"run {fence.run} of mirror {fence.mirror} fenced {name} at {format_time(fence.written_ms)}, {purpose}"
    promotion = [f"{outlook.promotion}."] if outlook.promotion else []
    if fence.command:
        return [
            *promotion,
            f"{fenced}{fence.destination}",
            (f"its fence_command was called for {topics}. Its unfence_command is called"),
            *(f"warning: {line}" for line in outlook.warnings),
        ]
    return [
        *promotion,
        f"{fenced}{fence.destination}",
        f"everybody is denied to write {topics}, and {ids}",
        (
            f"{format_count(len(outlook.present_denials), 'DENY ACL')} of this run on {name}; nothing else is removed"
            if outlook.present_denials
            else f"none of these DENY ACLs stands on {name} any more: this run keeps nobody from writing there"
        ),
        *(f"warning: {line}" for line in outlook.warnings),
    ]


def _format_names(names: Collection[str]) -> str:
    return f" ({join_limited(names)})" if names else ""


def _format_done(name: str, fence: FenceFile, outlook: LiftPreview) -> Iterator[str]:
    means = "by its unfence_command" if fence.command else f"on every broker of {name}"
    yield f"the fence is lifted, {means}: whoever had a right to write there can write again"
    if outlook.destination is None:
        yield str(Finding("fence_lifted_unseen", fence.mirror, destination=fence.destination))
    elif (holder := find_holding_run(outlook.destination, fence.mirror)) is not None:
        finding = Finding(
            "fence_lifted_run_open", fence.mirror, run=holder.id, destination=fence.destination, verbs=holder.verbs
        )
        yield str(finding)


def _to_unfence_document(
    name: str, fence: FenceFile, outlook: LiftPreview, trouble: tuple[str, ...], *, is_done: bool
) -> UnfenceDocument:
    return UnfenceDocument(
        cluster=name,
        run=fence.run,
        mirror=fence.mirror,
        destination=fence.destination,
        destination_answers=outlook.destination is not None,
        written_ms=fence.written_ms,
        topics=fence.topics,
        transactional_ids=fence.transactional_ids,
        by_command=fence.command,
        denials_found=len(outlook.present_denials),
        warnings=(*(map(str, filter(None, [outlook.promotion]))), *outlook.warnings, *trouble),
        lifted=is_done,
    )


cluster_app = typer.Typer(help="The clusters of mirrorbook.yaml.", no_args_is_help=True)


cluster_app.command("unfence")(unfence)


@cluster_app.command()
@prints_json(ClusterCheck)
def check(
    name: Annotated[str, typer.Argument(help="The cluster.", autocompletion=complete_clusters)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a cluster answers, and which rights the mirror's principals lack, as kafka-acls.sh lines."""
    cluster_check = check_cluster(load_configuration(config).cluster(name))
    if as_json:
        print_json(cluster_check)
    else:
        _print_check(cluster_check)
    if cluster_check.problems:
        raise RemoteFault(f"cluster {name}: " + "; ".join(cluster_check.problems))
    if not cluster_check.roles:
        raise MissingPermission(f"cluster {name}: rights are missing both for a source and for a destination")


VERDICTS_TO_GRANT = (RightStatus.MISSING, RightStatus.SPARED, RightStatus.UNKNOWN)


def _print_check(cluster_check: ClusterCheck) -> None:
    print_facts(
        {
            "cluster": f"{cluster_check.cluster} ({cluster_check.cluster_id})",
            "brokers": ", ".join(cluster_check.brokers),
            "features": (
                ", ".join(f"{name} {level}" for name, level in sorted(cluster_check.features.items())) or "none"
            ),
            "authorizer": cluster_check.authorizer,
            "a first ACL shuts others out": cluster_check.first_acl.shuts_out,
            "has all rights as": " and ".join(cluster_check.roles) or "neither source nor destination",
        }
    )
    print_table(
        "Rights",
        ["role", "principal", "user", "right", "verdict", "for", "detail"],
        [
            [right.role, right.principal, right.user, _format_right(right), right.verdict, right.why, right.detail]
            for right in cluster_check.rights
        ],
    )
    if cluster_check.first_acl.shuts_out is FirstAclEffect.UNKNOWN:
        print_line(f"warning: {cluster_check.first_acl.text}")
    for line in cluster_check.advice:
        print_line(f"advice: {line}")
    commands = list(
        dict.fromkeys(
            right.command for right in cluster_check.rights if right.command and right.verdict in VERDICTS_TO_GRANT
        )
    )
    if commands:
        print_line("To grant what is missing or could not be tested (narrow `*` to the mirror's topics if you like):")
        for command in commands:
            print_line(f"  {command}")


def _format_right(right: RightCheck) -> str:
    denied = f"{right.permission} " if right.permission == Permission.DENY else ""
    return f"{denied}{right.operation} on {right.resource}"


class SilencePolicy(StrEnum):
    ALLOW = "allow"
    REFUSE = "refuse"


class GuardDocument(JsonDocument, frozen=True, kw_only=True):
    """Whether a cluster's brokers may start."""

    mirror: str
    cluster: str
    gate: BrokerStartGate
    opens: bool
    """With --on-silence, as the exit code."""
    text: str


@prints_json(GuardDocument)
def guard_command(
    name: NameArgument,
    cluster: Annotated[str, typer.Option("--cluster", help="The cluster whose brokers are about to start.")],
    on_silence: Annotated[
        SilencePolicy, typer.Option("--on-silence", help="What to do when nobody answers who would know.")
    ] = SilencePolicy.REFUSE,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """May this cluster open to applications? Asked before its brokers start. Exit code 0 yes, 3 no, 4 nobody knows."""
    answer = check_start(load_configuration(config), name, cluster)
    is_blocked = answer.gate is BrokerStartGate.BLOCKED
    is_unknown = answer.gate is BrokerStartGate.UNKNOWN and on_silence is SilencePolicy.REFUSE
    if as_json:
        opens = not (is_blocked or is_unknown)
        print_json(GuardDocument(mirror=name, cluster=cluster, gate=answer.gate, opens=opens, text=answer.text))
    if is_blocked:
        raise Refused(f"guard of cluster {cluster}", [answer.text], reason_code="gate_blocked")
    if is_unknown:
        raise Indeterminate(f"{answer.text} With --on-silence allow it would open all the same")
    if not as_json:
        print_line(answer.text, err=answer.gate is BrokerStartGate.UNKNOWN)
