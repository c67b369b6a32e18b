"""Imports a command's module when it is called.

Other packages' entry point is a mapping like `COMMANDS`; it never delays or breaks ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperGroup

from mirror_core.model.errors import BadRequest

ENTRY_POINT_GROUP: Final = "mirrorbook.commands"


@dataclass(frozen=True, slots=True)
class LazyCommand:
    module: str
    attribute: str
    help: str
    """In the list of commands. A test compares it with the command's own."""
    panel: str = "Other commands"
    example: str = ""


EMERGENCY: Final = "Emergency and recovery"
EVERY_DAY: Final = "Mirrors and copying"
CHECKS: Final = "Checks and evidence"


COMMANDS: Final[Mapping[str, LazyCommand]] = MappingProxyType(
    {
        "failover": LazyCommand(
            "mirror_core.cli.failover",
            "failover_app",
            "Move applications to a mirror's destination.",
            EMERGENCY,
            "mirrorbook failover plan orders --mode unplanned",
        ),
        "failback": LazyCommand(
            "mirror_core.cli.failback",
            "failback_app",
            "Bring applications home after a failover.",
            EMERGENCY,
            "mirrorbook failback plan orders",
        ),
        "readiness": LazyCommand(
            "mirror_core.cli.readiness",
            "readiness_command",
            "Could it be failed over now? What speaks against it, and what to do. Changes nothing. Exit code 3: not "
            "ready.",
            EMERGENCY,
            "mirrorbook readiness orders",
        ),
        "drill": LazyCommand(
            "mirror_core.cli.drill",
            "drill_app",
            "A failover that nobody notices: the same steps, on a topic of their own.",
            EMERGENCY,
            "mirrorbook drill run orders",
        ),
        "runs": LazyCommand(
            "mirror_core.cli.runs",
            "runs_app",
            "Runs of failover and failback: journal and evidence.",
            EMERGENCY,
            "mirrorbook runs list",
        ),
        "salvage": LazyCommand(
            "mirror_core.cli.salvage",
            "salvage_app",
            "Records that were saved from a divergent tail.",
            EMERGENCY,
            "mirrorbook salvage replay evidence/run-ID/salvage --config replay.yaml --cluster west --to orders=orders",
        ),
        "guard": LazyCommand(
            "mirror_core.cli.cluster",
            "guard_command",
            "May this cluster open to applications? Asked before its brokers start. Exit code 0 yes, 3 no, 4 nobody "
            "knows.",
            EMERGENCY,
            "mirrorbook guard orders --cluster east",
        ),
        "cluster": LazyCommand(
            "mirror_core.cli.cluster",
            "cluster_app",
            "The clusters of mirrorbook.yaml.",
            EVERY_DAY,
            "mirrorbook cluster check east",
        ),
        "mirror": LazyCommand(
            "mirror_core.cli.mirror",
            "mirror_app",
            "One-way links between two clusters.",
            EVERY_DAY,
            "mirrorbook mirror describe orders",
        ),
        "replicate": LazyCommand(
            "mirror_core.cli.replicate",
            "replicate_command",
            "Create missing mirror topics and copy. Runs on until SIGTERM, or until caught up.",
            EVERY_DAY,
            "mirrorbook replicate orders --runner local",
        ),
        "supervise": LazyCommand(
            "mirror_core.cli.replicate",
            "supervise_command",
            "Keep `mirrorbook replicate NAME` running: start it again whenever it ends, until told to stop (SIGTERM, "
            "Ctrl-C).",
            EVERY_DAY,
            "mirrorbook supervise orders",
        ),
        "sync": LazyCommand(
            "mirror_core.cli.sync",
            "sync_command",
            "Bring topics, their settings, access rights, groups' offsets and client quotas in line; print what "
            "differed.",
            EVERY_DAY,
            "mirrorbook sync orders --dry-run",
        ),
        "parity": LazyCommand(
            "mirror_core.cli.parity",
            "parity_command",
            "Compare both clusters, offset by offset. Exit code 0 passed, 1 failed, 4 indeterminate.",
            CHECKS,
            "mirrorbook parity orders --runner local",
        ),
        "parity-job": LazyCommand(
            "mirror_core.cli.parity_job",
            "parity_job_app",
            "A comparison in three parts: planned here, run by your Spark, judged here.",
            CHECKS,
            "mirrorbook parity-job plan orders --output plans",
        ),
        "receipts": LazyCommand(
            "mirror_core.cli.receipts",
            "receipts_app",
            "What vouches for a copy: put together, or stored anew.",
            CHECKS,
            "mirrorbook receipts compact orders",
        ),
        "evidence": LazyCommand(
            "mirror_core.cli.evidence",
            "evidence_app",
            "What a run has left: written as a bundle, and verified offline.",
            CHECKS,
            "mirrorbook evidence verify evidence/run-ID",
        ),
        "page": LazyCommand(
            "mirror_core.cli.page",
            "page_command",
            "Serve the pages about mirrors and runs, read only and without Airflow, until SIGTERM.",
            CHECKS,
            "mirrorbook page --listen 9467",
        ),
        "json-schema": LazyCommand(
            "mirror_core.cli.json_schema",
            "json_schema_command",
            "Print the JSON Schema of what a command prints with --json.",
            CHECKS,
            "mirrorbook json-schema mirror describe",
        ),
    }
)


class LazyGroup(TyperGroup):
    lazy_commands: ClassVar[Mapping[str, LazyCommand]] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        for name, lazy_command in find_installed_commands().items():
            self.commands.setdefault(
                name,
                TyperCommand(
                    name, help=lazy_command.help, callback=_fail_if_called, rich_help_panel=lazy_command.panel
                ),
            )
        return super().list_commands(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        parameters = list(super().get_params(ctx))
        _hide_types_of_flags(parameters)
        return parameters

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        lazy_command = self.lazy_commands.get(name) or find_installed_commands().get(name)
        if lazy_command is not None:
            self.commands[name] = load_command(name, lazy_command)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            from mirror_core.cli.output import print_line

            for note in getattr(interrupt, "__notes__", ("interrupted: what was done before stays",)):
                print_line(note, err=True)
            raise  # typer exits with 130


@cache
def find_installed_commands() -> Mapping[str, LazyCommand]:
    """Commands of other packages. A name of ours stays ours."""
    installed_commands: dict[str, LazyCommand] = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            commands: Mapping[str, LazyCommand] = entry_point.load()
        except (ImportError, AttributeError) as error:
            raise BadRequest(
                f"the commands of {entry_point.value} cannot be loaded ({error}): install the package that has them "
                "again, or remove it"
            ) from error
        installed_commands.update(commands)
    return {name: command for name, command in installed_commands.items() if name not in COMMANDS}


def list_lazy_commands() -> Mapping[str, LazyCommand]:
    return {**COMMANDS, **find_installed_commands()}


def register_commands(app: typer.Typer) -> None:
    for name, lazy_command in COMMANDS.items():
        app.command(name, help=lazy_command.help, rich_help_panel=lazy_command.panel)(_fail_if_called)


def load_command(name: str, lazy_command: LazyCommand) -> Any:
    attribute_value = getattr(import_module(lazy_command.module), lazy_command.attribute)
    if isinstance(attribute_value, typer.Typer):
        command: Any = typer.main.get_group(attribute_value)
    else:
        single_app = typer.Typer(add_completion=False)
        single_app.command(name)(attribute_value)
        command = typer.main.get_command(single_app)
    command.name = name
    if lazy_command.example:
        command.epilog = f"Example: {lazy_command.example}"
    _hide_flag_types(command)
    return command


def _hide_flag_types(command: Any) -> None:
    _hide_types_of_flags(command.get_params(typer.Context(command)))
    for subcommand in getattr(command, "commands", {}).values():
        _hide_flag_types(subcommand)


def _hide_types_of_flags(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""


def _fail_if_called() -> None:
    raise AssertionError("a command was called before it was imported")
