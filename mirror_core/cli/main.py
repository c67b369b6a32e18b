"""The command `mirrorbook`: mounts the commands, and turns errors into words and exit codes."""

from __future__ import annotations

import faulthandler
import logging
import sys
from typing import NoReturn

import typer

from mirror_core.cli.cluster import cluster_app
from mirror_core.cli.failback import failback_app
from mirror_core.cli.failover import failover_app
from mirror_core.cli.mirror import mirror_app
from mirror_core.cli.parity import parity_command
from mirror_core.cli.replicate import replicate_command
from mirror_core.cli.runs import runs_app
from mirror_core.cli.supervise import supervise_command
from mirror_core.cli.sync import sync_command
from mirror_core.model.errors import MirrorError
from mirror_core.sandbox.cli import sandbox_app

app = typer.Typer(
    help="Disaster recovery for Apache Kafka: an exact second cluster, and a runbook to move to it and home again.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(cluster_app, name="cluster")
app.add_typer(mirror_app, name="mirror")
app.add_typer(failover_app, name="failover")
app.add_typer(failback_app, name="failback")
app.add_typer(runs_app, name="runs")
app.command("replicate")(replicate_command)
app.command("sync")(sync_command)
app.command("parity")(parity_command)
app.command("supervise")(supervise_command)


def main() -> NoReturn:
    """Entry point. Exit codes: 0 done, 1 failed, 2 bad request, 3 refused, 4 indeterminate, 5 lost ownership."""
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # a crash inside a native library must not be a silent end
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    try:
        app()
    except MirrorError as error:
        if debug:
            raise
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(0)
