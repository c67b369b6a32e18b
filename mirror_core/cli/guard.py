"""`mirrorbook guard`: parse, call, print."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mirror_core.cli.common import ConfigOption, NameArgument, configuration
from mirror_core.cli.telling import tell
from mirror_core.decide.guard import Gate
from mirror_core.mirrors.guard import guarded
from mirror_core.model.errors import Indeterminate, Refused


class OnSilence(StrEnum):
    ALLOW = "allow"
    REFUSE = "refuse"


def guard_command(
    name: NameArgument,
    cluster: Annotated[str, typer.Option("--cluster", help="The cluster whose brokers are about to start.")],
    on_silence: Annotated[
        OnSilence, typer.Option("--on-silence", help="What to do when nobody answers who would know.")
    ] = OnSilence.REFUSE,
    config: ConfigOption = None,
) -> None:
    """May this cluster open to applications? Asked before its brokers start. Exit code 0 yes, 3 no, 4 nobody knows."""
    found = guarded(configuration(config), name, cluster)
    if found.gate is Gate.SHUT:
        raise Refused(f"guard of cluster {cluster}", [found.words])
    if found.gate is Gate.SILENT and on_silence is OnSilence.REFUSE:
        raise Indeterminate(f"{found.words} With --on-silence allow it would open all the same")
    tell(found.words, err=found.gate is Gate.SILENT)
