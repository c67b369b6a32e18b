"""Shows what a command would do, why it may not, and asks for confirmation."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from mirror_core.cli.command_options import require_confirmation
from mirror_core.cli.output import print_line
from mirror_core.decide.command_rules import COMMAND_RULES, MirrorCommand
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_commands import DEFAULT_DELETION, DeletionChoice
from mirror_core.model.names import ClusterName
from mirror_core.state.mirror_link import MirrorLink

UndoableYesOption = Annotated[
    bool,
    typer.Option("--yes", help="Do not ask. Without a terminal nothing is asked anyway: it is as easily undone."),
]


def confirm_command(
    link: MirrorLink,
    verb: MirrorCommand,
    *,
    dry_run: bool,
    yes: bool,
    further_lines: Iterable[str] = (),
    gone: ClusterName | None = None,
    deletion: DeletionChoice = DEFAULT_DELETION,
) -> bool:
    """False after a dry run. Raises if refused. Commands that are easily undone ask on a terminal only."""
    intent = mirror_commands.preview(link, verb, gone, deletion)
    if not dry_run:
        intent.raise_refusal()
    title_line, *detail_lines = intent.lines
    print_line(title_line)
    for line in (*detail_lines, *further_lines):
        print_line(f"  {line}")
    intent.raise_refusal()
    if dry_run:
        return False
    if sys.stdin.isatty() or not COMMAND_RULES[verb].undo_command:
        require_confirmation(f"{verb.capitalize()} mirror {link.mirror.name}?", yes)
    return True
