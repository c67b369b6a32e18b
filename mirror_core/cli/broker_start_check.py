"""`mirrorbook guard`: parse, call, print."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mirror_core.cli.command_options import ConfigOption, JsonOption, NameArgument, load_configuration, print_json
from mirror_core.cli.output import print_line
from mirror_core.decide.fence_state import BrokerStartGate
from mirror_core.mirrors.fence_manual_commands import check_start
from mirror_core.model.errors import Indeterminate, Refused
from mirror_core.model.json_documents import JsonDocument, prints_json


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
        raise Refused(f"guard of cluster {cluster}", [answer.text])
    if is_unknown:
        raise Indeterminate(f"{answer.text} With --on-silence allow it would open all the same")
    if not as_json:
        print_line(answer.text, err=answer.gate is BrokerStartGate.UNKNOWN)
