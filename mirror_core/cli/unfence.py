"""`mirrorbook cluster unfence`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
from mirror_core.cli.telling import print_line
from mirror_core.decide.standing import format_time
from mirror_core.decide.view import join_limited
from mirror_core.evidence.fence_file import FenceFile, read_fence_file
from mirror_core.mirrors.unfencing import LiftPreview, lift_by_file, preview_lift
from mirror_core.model.documents import JsonDocument, prints_json


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
    name: Annotated[
        str, typer.Argument(help="The cluster that is fenced.", autocompletion=completing.complete_clusters)
    ],
    file: Annotated[Path, typer.Option("--from", help="The run's file unfence-RUN.json, in its evidence folder.")],
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Lift the fence of a failover whose destination died before it was promoted. Needs this cluster and the file only.

    Exit code 3 when the destination answers and was promoted.
    """
    loaded = load_configuration(config)
    cluster, fence = loaded.cluster(name), read_fence_file(file)
    outlook = preview_lift(loaded, cluster, fence)
    for line in () if as_json and dry_run else _format_plan(name, fence, outlook):
        print_line(line, err=as_json)
    trouble: tuple[str, ...] = ()
    if not dry_run:
        require_confirmation(f"Lift the fence of run {fence.run}: let applications write on {name} again?", yes)
        trouble = lift_by_file(loaded, cluster, fence, file.absolute())
    if as_json:
        print_json(_to_unfence_document(name, fence, outlook, trouble, is_done=not dry_run))
    elif not dry_run:
        for line in (*(f"warning: {warning}" for warning in trouble), *_format_done(name, fence)):
            print_line(line)


def _format_plan(name: str, fence: FenceFile, outlook: LiftPreview) -> list[str]:
    topics, ids = len(fence.topics), len(fence.transactional_ids)
    fenced = f"run {fence.run} of mirror {fence.mirror} fenced {name} at {format_time(fence.written_ms)}, to move to "
    if fence.command:
        return [
            f"{fenced}{fence.destination}",
            f"its fence_command was called for {topics} topic(s): {join_limited(fence.topics)}. Its unfence_command is called",
            *(f"warning: {line}" for line in outlook.warnings),
        ]
    return [
        f"{fenced}{fence.destination}",
        f"everybody is denied to write {topics} topic(s): {join_limited(fence.topics) or 'none'}",
        f"and {ids} transactional id(s): {join_limited(fence.transactional_ids) or 'none'}",
        f"of these {topics + ids} denial(s) {name} has {len(outlook.present_denials)} now: they are removed, nothing else",
        *(f"warning: {line}" for line in outlook.warnings),
    ]


def _format_done(name: str, fence: FenceFile) -> list[str]:
    means = "by its unfence_command" if fence.command else f"on every broker of {name}"
    return [
        f"the fence is lifted, {means}: whoever had a right to write there can write again",
        f"run {fence.run} is open on {fence.destination} still. When that answers: `mirrorbook failover abort "
        f"{fence.mirror}`; do not resume it",
    ]


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
        warnings=(*outlook.warnings, *trouble),
        lifted=is_done,
    )
