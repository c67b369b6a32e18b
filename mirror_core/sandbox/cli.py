"""`mirrorbook sandbox`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirror_core.model.errors import BadRequest

if TYPE_CHECKING:
    from mirror_core.sandbox.sandbox import Sandbox

sandbox_app = typer.Typer(help="Two small Kafka clusters of real brokers on this machine.", no_args_is_help=True)

DirOption = Annotated[Path, typer.Option("--dir", help="The sandbox's folder.")]
DEFAULT_DIR = Path(".sandbox")


def _sandbox(dir: Path) -> Sandbox:
    # Imported late: `mirrorbook` without the extra `sandbox` must still start.
    try:
        from mirror_core.sandbox.sandbox import Sandbox
    except ModuleNotFoundError as error:
        raise BadRequest(f"the sandbox needs the package {error.name}: install mirrorbook[sandbox]") from error
    return Sandbox(dir, say=typer.echo)


@sandbox_app.command()
def up(
    dir: DirOption = DEFAULT_DIR,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of each cluster: 1 or 3. Default: as it is, at first 1.")
    ] = None,
) -> None:
    """Start clusters `east` and `west`, or what of them is not running."""
    _sandbox(dir).up(nodes)
    typer.echo("ready")


@sandbox_app.command()
def down(
    dir: DirOption = DEFAULT_DIR,
    delete: Annotated[bool, typer.Option("--delete", help="Also remove all data, passwords and ports.")] = False,
) -> None:
    """Stop the brokers of this sandbox, and no others."""
    stopped = _sandbox(dir).down(delete)
    typer.echo(f"{stopped} broker(s) stopped" + (", folder cleared" if delete else ""))


@sandbox_app.command()
def status(
    dir: DirOption = DEFAULT_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Show each node: process, port, whether it answers."""
    rows = [
        {
            "cluster": cluster.name,
            "node": broker.node,
            "port": broker.ports.client,
            "pid": (pid := cluster.pid(broker.node)),
            "alive": pid is not None,
            "answering": pid is not None and bool(cluster.answering(broker.node)),
        }
        for cluster in _sandbox(dir).clusters()
        for broker in cluster.brokers
    ]
    if as_json:
        typer.echo(json.dumps({"dir": str(dir.absolute()), "nodes": rows}, indent=2))
        return
    for row in rows:
        state = "answering" if row["answering"] else "alive, not answering" if row["alive"] else "down"
        typer.echo(f"{row['cluster']} node {row['node']}  port {row['port']}  pid {row['pid'] or '-'}  {state}")


@sandbox_app.command()
def config(dir: DirOption = DEFAULT_DIR) -> None:
    """Print a mirrorbook.yaml for both clusters; passwords stay in the sandbox's own private file."""
    typer.echo(_sandbox(dir).mirrorbook_yaml(), nl=False)
