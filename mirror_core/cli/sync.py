"""`mirrorbook sync`: parse, call, print."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated

import typer

from mirror_core.cli.asking import UndoableYesOption
from mirror_core.cli.common import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    NameArgument,
    agree,
    mirror,
    print_json,
    print_table,
)
from mirror_core.cli.telling import tell
from mirror_core.decide.verbs import Verb
from mirror_core.mirrors import verbs
from mirror_core.model.documents import prints
from mirror_core.model.drift import Action, Part
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.sync.cycle import SyncDocument, SyncReport, survey


@prints(SyncDocument)
def sync_command(
    name: NameArgument,
    config: ConfigOption = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Parts, with commas between: topics,configs,acls,groups.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: UndoableYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring topics, their settings, access rights and groups' offsets in line; print what differed."""
    parts = parse_parts(only)
    link, state = mirror(config, name)
    intent = verbs.intend(link, Verb.SYNC)
    if not dry_run:
        intent.check()
    if dry_run or (sys.stdin.isatty() and not yes):
        report = survey(link, state, only=parts)
        if not dry_run:
            _print(report)
            if report.pending:
                agree(f"Carry out {len(report.pending)} changes?", yes)
    if not dry_run:
        report = verbs.sync(link, only=parts)
    if as_json:
        print_json(report.document)
    else:
        _print(report)
    intent.check()
    if report.refused:
        raise Refused(f"mirror {name}: a person must decide", (f"{r.subject}: {r.reason}" for r in report.refused))


def parse_parts(only: str | None) -> frozenset[Part]:
    if only is None:
        return frozenset(Part)
    words = [word.strip() for word in only.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(Part)]
    if unknown or not words:
        raise BadRequest(f"--only: {unknown[0] if unknown else only!r} is no part; the parts are {', '.join(Part)}")
    return frozenset(Part(word) for word in words)


def _print(report: SyncReport) -> None:
    shown = [row for row in report.rows if row.action is not Action.EQUAL]
    print_table(
        f"Drift of {report.mirror}" + (" (dry run)" if report.dry_run else ""),
        ["part", "what", "source", "destination", "action", "done", "reason"],
        [[r.part, r.subject, r.source, r.destination, r.action, "yes" if r.done else "", r.reason] for r in shown],
    )
    counts = Counter(str(row.action) for row in report.rows)
    tell(", ".join(f"{count} {action}" for action, count in sorted(counts.items())) or "nothing in scope")
