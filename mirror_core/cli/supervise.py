"""`mirrorbook supervise`: parse, call, print."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from mirror_core.cli import completion
from mirror_core.cli.output import print_line
from mirror_core.kafka.config import find_config
from mirror_core.model.logs import get_log_settings
from mirror_core.model.names import MirrorName
from mirror_core.supervisor.lifecycle import build_replicate_command, build_watch_command
from mirror_core.supervisor.supervisor import Supervisor


def find_default_home() -> Path:
    """For locks, logs and status files of this user's supervisors."""
    base = os.environ.get("XDG_STATE_HOME") or ""
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "mirrorbook"


def supervise_command(
    name: Annotated[str, typer.Argument(help="The mirror.", autocompletion=completion.complete_mirrors)],
    options: Annotated[
        list[str] | None, typer.Argument(help="Options for `mirrorbook replicate`, after `--`.", metavar="[-- OPTIONS]")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Path of mirrorbook.yaml.")] = None,
    home: Annotated[
        Path | None, typer.Option("--home", help="Folder for lock, logs and status. Default: the user's state folder.")
    ] = None,
) -> None:
    """Keep `mirrorbook replicate NAME` running: start it again whenever it ends, until told to stop (SIGTERM, Ctrl-C).

    Copies NAME-back, too, as soon as a failback has made it, and keeps the source fenced that was failed away from.
    Waits longer after each quick end, 30 s at most. One supervisor for a mirror on a host; between hosts the mirror's
    lease decides who copies.
    """
    mirror = MirrorName(name)
    config_path, log_settings = find_config(config), get_log_settings()
    command = build_replicate_command(config_path, mirror, options or [], log_settings)
    watch_command_line = build_watch_command(config_path, mirror, options or [], log_settings)
    Supervisor(
        (home or find_default_home()).absolute(),
        mirror,
        command,
        print_text=print_line,
        refusal_command=watch_command_line,
    ).run()
