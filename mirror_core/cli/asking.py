"""Shows what a command would do, why it may not, and asks for confirmation."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from mirror_core.cli.common import agree
from mirror_core.cli.telling import tell
from mirror_core.decide.verbs import RULES, Verb
from mirror_core.mirrors import verbs
from mirror_core.mirrors.deletion import NO_CHOICE, DeletionChoice
from mirror_core.model.names import ClusterName
from mirror_core.state.link import Link

UndoableYesOption = Annotated[
    bool,
    typer.Option("--yes", help="Do not ask. Without a terminal nothing is asked anyway: it is as easily undone."),
]


def agreed(
    link: Link,
    verb: Verb,
    *,
    dry_run: bool,
    yes: bool,
    more: Iterable[str] = (),
    gone: ClusterName | None = None,
    deletion: DeletionChoice = NO_CHOICE,
) -> bool:
    """False after a dry run. Raises if refused. Commands that are easily undone ask on a terminal only."""
    intent = verbs.intend(link, verb, gone, deletion)
    if not dry_run:
        intent.check()
    first, *rest = intent.lines
    tell(first)
    for line in (*rest, *more):
        tell(f"  {line}")
    intent.check()
    if dry_run:
        return False
    if sys.stdin.isatty() or not RULES[verb].undone:
        agree(f"{verb.capitalize()} mirror {link.mirror.name}?", yes)
    return True
