"""Shows what a command would do, and asks for confirmation."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import typer

from mirror_core.cli.command_options import print_json, require_confirmation, require_typed_name
from mirror_core.cli.output import print_line
from mirror_core.decide.command_rules import COMMAND_RULES, MirrorCommand
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_commands import DEFAULT_DELETION, DeletionChoice
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import JsonDocument
from mirror_core.model.names import ClusterName
from mirror_core.state.lease import observe_live_lease
from mirror_core.state.mirror_link import MirrorLink
from mirror_core.state.state_records import State


class MirrorCommandDocument(JsonDocument, frozen=True, kw_only=True):
    """A command that changes a mirror."""

    mirror: str
    command: str
    """create, start, pause, resume, throttle, stop, recover or delete."""
    done: bool
    """False after a dry run, or if there was nothing to do."""
    lines: tuple[str, ...]
    """What it would do, and what it did, as people read it."""


@dataclass(slots=True)
class CommandOutput:
    """Lines as they come, or one document at the end."""

    mirror: str
    command: str
    as_json: bool
    _lines: list[str] = field(default_factory=list)

    def print_line(self, text: str) -> None:
        if self.as_json:
            self._lines.append(text)
        else:
            print_line(text)

    def print_change(self, link: MirrorLink, state: State, change: str) -> None:
        is_copying = observe_live_lease(link.destination, state, link.mirror.name) is not None
        applied = "the data plane applies it from its next epoch" if is_copying else "no data plane is seen to run"
        self.print_line(f"mirror {self.mirror}: {change}; {applied}")

    def finish(self, *, done: bool) -> None:
        if self.as_json:
            document = MirrorCommandDocument(
                mirror=self.mirror, command=self.command, done=done, lines=tuple(self._lines)
            )
            print_json(document)


UndoableYesOption = Annotated[
    bool,
    typer.Option("--yes", help="Do not ask. Without a terminal nothing is asked anyway: it is as easily undone."),
]


def confirm_command(
    link: MirrorLink,
    verb: MirrorCommand,
    output: CommandOutput,
    *,
    dry_run: bool,
    yes: bool,
    further_lines: Iterable[str] = (),
    gone: ClusterName | None = None,
    deletion: DeletionChoice = DEFAULT_DELETION,
) -> bool:
    """False after a dry run, which ends the output. Raises if refused.

    Commands that are easily undone ask on a terminal only.
    """
    intent = mirror_commands.preview(link, verb, gone, deletion)
    if not dry_run:
        intent.raise_refusal()
    title_line, *detail_lines = intent.lines
    output.print_line(title_line)
    for line in (*detail_lines, *further_lines):
        output.print_line(f"  {line}")
    intent.raise_refusal()
    if dry_run:
        output.finish(done=False)
        return False
    if verb is MirrorCommand.DELETE:
        lost = Finding("mirror_to_forget", link.mirror.name, destination=link.mirror.destination)
        require_typed_name(link.mirror.name, yes, str(lost))
    elif sys.stdin.isatty() or not COMMAND_RULES[verb].undo_command:
        require_confirmation(f"{verb.capitalize()} mirror {link.mirror.name}?", yes)
    return True
