"""`mirrorbook cluster unfence`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli import completing
from mirror_core.cli.common import ConfigOption, DryRunOption, JsonOption, YesOption, agree, configuration, print_json
from mirror_core.cli.telling import tell
from mirror_core.decide.standing import when
from mirror_core.decide.view import some
from mirror_core.evidence.fence_file import FenceFile, read
from mirror_core.mirrors.unfencing import Outlook, lift, look
from mirror_core.model.documents import Document, prints


class UnfenceDocument(Document, frozen=True, kw_only=True):
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
    denials_there: int
    """The fence's denials found before the lift."""
    warnings: tuple[str, ...]
    lifted: bool
    """False: dry run."""


@prints(UnfenceDocument)
def unfence(
    name: Annotated[str, typer.Argument(help="The cluster that is fenced.", autocompletion=completing.clusters)],
    file: Annotated[Path, typer.Option("--from", help="The run's file unfence-RUN.json, in its evidence folder.")],
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Lift the fence of a failover whose destination died before it was promoted. Needs this cluster and the file only.

    Exit code 3 when the destination answers and was promoted.
    """
    loaded = configuration(config)
    cluster, fence = loaded.cluster(name), read(file)
    outlook = look(loaded, cluster, fence)
    for line in () if as_json and dry_run else _lines(name, fence, outlook):
        tell(line, err=as_json)
    trouble: tuple[str, ...] = ()
    if not dry_run:
        agree(f"Lift the fence of run {fence.run}: let applications write on {name} again?", yes)
        trouble = lift(loaded, cluster, fence, file.absolute())
    if as_json:
        print_json(_document(name, fence, outlook, trouble, done=not dry_run))
    elif not dry_run:
        for line in (*(f"warning: {one}" for one in trouble), *_done(name, fence)):
            tell(line)


def _lines(name: str, fence: FenceFile, outlook: Outlook) -> list[str]:
    topics, ids = len(fence.topics), len(fence.transactional_ids)
    fenced = f"run {fence.run} of mirror {fence.mirror} fenced {name} at {when(fence.written_ms)}, to move to "
    if fence.command:
        return [
            f"{fenced}{fence.destination}",
            f"its fence_command was called for {topics} topic(s): {some(fence.topics)}. Its unfence_command is called",
            *(f"warning: {line}" for line in outlook.warnings),
        ]
    return [
        f"{fenced}{fence.destination}",
        f"everybody is denied to write {topics} topic(s): {some(fence.topics) or 'none'}",
        f"and {ids} transactional id(s): {some(fence.transactional_ids) or 'none'}",
        f"of these {topics + ids} denial(s) {name} has {len(outlook.there)} now: they are removed, nothing else",
        *(f"warning: {line}" for line in outlook.warnings),
    ]


def _done(name: str, fence: FenceFile) -> list[str]:
    how = "by its unfence_command" if fence.command else f"on every broker of {name}"
    return [
        f"the fence is lifted, {how}: whoever had a right to write there can write again",
        f"run {fence.run} is open on {fence.destination} still. When that answers: `mirrorbook failover abort "
        f"{fence.mirror}`; do not resume it",
    ]


def _document(
    name: str, fence: FenceFile, outlook: Outlook, trouble: tuple[str, ...], *, done: bool
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
        denials_there=len(outlook.there),
        warnings=(*outlook.warnings, *trouble),
        lifted=done,
    )
