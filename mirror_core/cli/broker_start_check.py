"""`mirrorbook guard`: parse, call, print."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mirror_core.cli.command_options import ConfigOption, NameArgument, load_configuration
from mirror_core.cli.output import print_line
from mirror_core.decide.fence_state import BrokerStartGate
from mirror_core.mirrors.fence_manual_commands import check_start
from mirror_core.model.errors import Indeterminate, Refused


class SilencePolicy(StrEnum):
    ALLOW = "allow"
    REFUSE = "refuse"


def guard_command(
    name: NameArgument,
    cluster: Annotated[str, typer.Option("--cluster", help="The cluster whose brokers are about to start.")],
    on_silence: Annotated[
        SilencePolicy, typer.Option("--on-silence", help="What to do when nobody answers who would know.")
    ] = SilencePolicy.REFUSE,
    config: ConfigOption = None,
) -> None:
    """May this cluster open to applications? Asked before its brokers start. Exit code 0 yes, 3 no, 4 nobody knows."""
    answer = check_start(load_configuration(config), name, cluster)
    if answer.gate is BrokerStartGate.BLOCKED:
        raise Refused(f"guard of cluster {cluster}", [answer.text])
    if answer.gate is BrokerStartGate.UNKNOWN and on_silence is SilencePolicy.REFUSE:
        raise Indeterminate(f"{answer.text} With --on-silence allow it would open all the same")
    print_line(answer.text, err=answer.gate is BrokerStartGate.UNKNOWN)
