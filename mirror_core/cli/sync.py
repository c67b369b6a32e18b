from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated

import typer

from mirror_core.cli.command_options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    NameArgument,
    find_mirror,
    print_json,
    require_confirmation,
)
from mirror_core.cli.confirm import UndoableYesOption
from mirror_core.cli.output import print_line
from mirror_core.cli.tables import print_table
from mirror_core.decide.command_rules import MirrorCommand
from mirror_core.mirrors import mirror_commands
from mirror_core.model.errors import BadRequest, Refused
from mirror_core.model.json_documents import prints_json
from mirror_core.model.sync_state import SyncAction, SyncCategory
from mirror_core.sync.mirror_sync import SyncDocument, SyncReport, preview_sync


@prints_json(SyncDocument)
def sync_command(
    name: NameArgument,
    config: ConfigOption = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Parts, with commas between: topics,configs,acls,groups,quotas.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: UndoableYesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring topics, their settings, access rights, groups' offsets and client quotas in line; print what differed."""
    parts = parse_parts(only)
    link, state = find_mirror(config, name)
    intent = mirror_commands.preview(link, MirrorCommand.SYNC)
    if not dry_run:
        intent.raise_refusal()
    if dry_run or (sys.stdin.isatty() and not yes):
        report = preview_sync(link, state, only=parts)
        if not dry_run:
            _print_report(report)
            if report.pending:
                require_confirmation(f"Carry out {len(report.pending)} changes?", yes)
    if not dry_run:
        report = mirror_commands.run_sync(link, only=parts)
    if as_json:
        print_json(report.document)
    else:
        _print_report(report)
    intent.raise_refusal()
    if report.refused:
        raise Refused(
            f"mirror {name}: a person must decide",
            (f"{r.subject}: {r.reason}" for r in report.refused),
            reason_code="sync_needs_person",
        )


def parse_parts(only: str | None) -> frozenset[SyncCategory]:
    if only is None:
        return frozenset(SyncCategory)
    names = [word.strip() for word in only.split(",") if word.strip()]
    unknown = [word for word in names if word not in set(SyncCategory)]
    if unknown or not names:
        raise BadRequest(
            f"--only: {unknown[0] if unknown else only!r} is no part; the parts are {', '.join(SyncCategory)}"
        )
    return frozenset(SyncCategory(word) for word in names)


def _print_report(report: SyncReport) -> None:
    differing = [row for row in report.rows if row.action is not SyncAction.EQUAL]
    print_table(
        f"Drift of {report.mirror}" + (" (dry run)" if report.dry_run else ""),
        ["part", "what", "source", "destination", "action", "done", "reason"],
        [[r.part, r.subject, r.source, r.destination, r.action, "yes" if r.done else "", r.reason] for r in differing],
    )
    counts = Counter(str(row.action) for row in report.rows)
    print_line(", ".join(f"{count} {action}" for action, count in sorted(counts.items())) or "nothing in scope")
