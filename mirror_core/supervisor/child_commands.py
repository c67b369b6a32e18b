"""Command lines of a supervisor's children."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import LogSettings
from mirror_core.model.names import MirrorName, format_reverse_name, is_reverse_mirror

PROGRAM: Final = (sys.executable, "-m", "mirror_core")


def build_replicate_command(
    config_path: Path, mirror: MirrorName, args: Sequence[str], log: LogSettings
) -> tuple[str, ...]:
    """Copies the mirror there and, when a failback has made its reverse mirror, home again.

    BadRequest for options that make the child end.
    """
    if "--until-caught-up" in args:
        raise BadRequest(
            f"mirror {mirror}: supervise keeps replicate running, --until-caught-up makes it end: "
            f"run `mirrorbook replicate {mirror} --until-caught-up` itself"
        )
    names = (mirror,) if is_reverse_mirror(mirror) else (mirror, format_reverse_name(mirror))
    return (*PROGRAM, *log.to_options(), "replicate", *names, "--config", str(config_path), *args)


def build_watch_command(
    config_path: Path, mirror: MirrorName, args: Sequence[str], log: LogSettings
) -> tuple[str, ...]:
    metrics = [argument for argument in args if argument.startswith("--metrics=")]
    if "--metrics" in args[:-1]:
        metrics = ["--metrics", args[args.index("--metrics") + 1]]
    return (*PROGRAM, *log.to_options(), "mirror", "watch", mirror, "--config", str(config_path), *metrics)
