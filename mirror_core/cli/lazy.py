"""Imports a command's module when it is called: clients, Arrow and wire types take most of a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperGroup


@dataclass(frozen=True, slots=True)
class Later:
    module: str
    attribute: str
    help: str
    """In the list of commands. A test compares it with the command's own."""


COMMANDS: Final[Mapping[str, Later]] = MappingProxyType(
    {
        "demo": Later(
            "mirror_core.demo.cli",
            "demo_command",
            "See it work: two clusters, a failover under load, every record counted. Exit code 0: exact; 1: not.",
        ),
        "sandbox": Later(
            "mirror_core.sandbox.cli", "sandbox_app", "Two small Kafka clusters of real brokers on this machine."
        ),
        "cluster": Later("mirror_core.cli.cluster", "cluster_app", "The clusters of mirrorbook.yaml."),
        "mirror": Later("mirror_core.cli.mirror", "mirror_app", "One-way links between two clusters."),
        "replicate": Later(
            "mirror_core.cli.replicate",
            "replicate_command",
            "Create missing mirror topics and copy. Runs on until SIGTERM, or until caught up.",
        ),
        "supervise": Later(
            "mirror_core.cli.supervise",
            "supervise_command",
            "Keep `mirrorbook replicate NAME` running: start it again whenever it ends, until told to stop (SIGTERM, "
            "Ctrl-C).",
        ),
        "sync": Later(
            "mirror_core.cli.sync",
            "sync_command",
            "Bring topics, their settings, access rights and groups' offsets in line; print what differed.",
        ),
        "parity": Later(
            "mirror_core.cli.parity",
            "parity_command",
            "Compare both clusters, offset by offset. Exit code 0 passed, 1 failed, 4 indeterminate.",
        ),
        "receipts": Later(
            "mirror_core.cli.receipts", "receipts_app", "What vouches for a copy: put together, or stored anew."
        ),
        "readiness": Later(
            "mirror_core.cli.readiness",
            "readiness_command",
            "Could it be failed over now? What speaks against it, and what to do. Changes nothing. Exit code 3: not "
            "ready.",
        ),
        "failover": Later("mirror_core.cli.failover", "failover_app", "Move applications to a mirror's destination."),
        "failback": Later("mirror_core.cli.failback", "failback_app", "Bring applications home after a failover."),
        "drill": Later(
            "mirror_core.cli.drill",
            "drill_app",
            "A failover that nobody notices: the same steps, on a topic of their own.",
        ),
        "guard": Later(
            "mirror_core.cli.guard",
            "guard_command",
            "May this cluster open to applications? Asked before its brokers start. Exit code 0 yes, 3 no, 4 nobody "
            "knows.",
        ),
        "evidence": Later(
            "mirror_core.cli.evidence",
            "evidence_app",
            "What a run has left: written as a bundle, and verified offline.",
        ),
        "log": Later("mirror_core.cli.log", "log_app", "Logs of a broker that is stopped."),
        "runs": Later("mirror_core.cli.runs", "runs_app", "Runs of failover and failback: journal and evidence."),
        "json-schema": Later(
            "mirror_core.cli.json_schema",
            "json_schema_command",
            "Print the JSON Schema of what a command prints with --json.",
        ),
    }
)


class LateCommands(TyperGroup):
    """Lists COMMANDS, and imports the one that is called."""

    known: ClassVar[Mapping[str, Later]] = COMMANDS

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in self.known:
            self.commands[args[0]] = load(args[0], self.known[args[0]])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted: what had been begun may be half done", err=True)
            raise  # typer exits with 130


def list_in(app: typer.Typer) -> None:
    for name, later in COMMANDS.items():
        app.command(name, help=later.help)(_not_yet)


def load(name: str, later: Later) -> Any:
    found = getattr(import_module(later.module), later.attribute)
    if isinstance(found, typer.Typer):
        command: Any = typer.main.get_group(found)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        command = typer.main.get_command(alone)
    command.name = name
    return command


def _not_yet() -> None:
    raise AssertionError("a command was called before it was imported")
