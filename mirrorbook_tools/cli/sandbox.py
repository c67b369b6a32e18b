"""`mirrorbook sandbox`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mirror_core.model.errors import BadRequest
from mirror_core.model.json_documents import JsonDocument, format_json, prints_json
from mirrorbook_tools.sandbox.wan_proxy import Weather

if TYPE_CHECKING:
    from mirrorbook_tools.sandbox.sandbox import Sandbox

sandbox_app = typer.Typer(help="Two small Kafka clusters of real brokers on this machine.", no_args_is_help=True)

DirOption = Annotated[Path, typer.Option("--dir", help="The sandbox's folder.")]
ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="east or west.")]
NodeOption = Annotated[int | None, typer.Option("--node", min=1, help="Only this node. Default: the whole cluster.")]
DEFAULT_DIR = Path(".sandbox")


def _sandbox(dir: Path) -> Sandbox:
    # Imported late: `mirrorbook` without the extra `sandbox` must still start.
    try:
        from mirrorbook_tools.sandbox.sandbox import Sandbox
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"the sandbox needs the package {error.name}: install your Mirrorbook wheel with [sandbox]"
        ) from error
    return Sandbox(dir, say=typer.echo)


@sandbox_app.command()
def up(
    dir: DirOption = DEFAULT_DIR,
    nodes: Annotated[
        int | None, typer.Option(help="Nodes of each cluster: 1 or 3. Default: as it is, at first 1.")
    ] = None,
    link: Annotated[
        bool | None,
        typer.Option(
            "--link",
            help="Lead Mirrorbook's way to them, and not that of applications, over a link for `slow` and `partition`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start clusters `east` and `west`, or what of them is not running."""
    _sandbox(dir).up(nodes, link=link)
    typer.echo("ready")


@sandbox_app.command()
def down(
    dir: DirOption = DEFAULT_DIR,
    delete: Annotated[bool, typer.Option("--delete", help="Also remove all data, passwords and ports.")] = False,
) -> None:
    """Stop the brokers of this sandbox, and no others."""
    stopped = _sandbox(dir).down(delete)
    typer.echo(f"{stopped} broker(s) stopped" + (", folder cleared" if delete else ""))


class SandboxNode(msgspec.Struct, frozen=True, kw_only=True):
    """A broker of the sandbox."""

    cluster: str
    node: int
    port: int
    pid: int | None
    """Null: it does not run."""
    alive: bool
    answering: bool


class SandboxDocument(JsonDocument, frozen=True, kw_only=True):
    """The nodes of a sandbox."""

    dir: str
    nodes: tuple[SandboxNode, ...]


@sandbox_app.command()
@prints_json(SandboxDocument)
def status(
    dir: DirOption = DEFAULT_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Show each node: process, port, whether it answers."""
    rows = tuple(
        SandboxNode(
            cluster=cluster.name,
            node=broker.node,
            port=broker.ports.client,
            pid=(pid := cluster.pid(broker.node)),
            alive=pid is not None,
            answering=pid is not None and bool(cluster.answering(broker.node)),
        )
        for cluster in _sandbox(dir).clusters()
        for broker in cluster.brokers
    )
    if as_json:
        typer.echo(format_json(SandboxDocument(dir=str(dir.absolute()), nodes=rows)))
        return
    for row in rows:
        state = "answering" if row.answering else "alive, not answering" if row.alive else "down"
        typer.echo(f"{row.cluster} node {row.node}  port {row.port}  pid {row.pid or '-'}  {state}")


@sandbox_app.command()
def config(dir: DirOption = DEFAULT_DIR) -> None:
    """Print a mirrorbook.yaml for both clusters; passwords stay in the sandbox's own private file."""
    typer.echo(_sandbox(dir).mirrorbook_yaml(), nl=False)


@sandbox_app.command()
def kill(cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR) -> None:
    """Let brokers die, as a crash or a lost site does it (SIGKILL). `up` starts them again, on their data."""
    site = _sandbox(dir).cluster(cluster)
    for number in site.nodes(node):
        running = site.pid(number)
        site.kill(number)
        typer.echo(f"{site.name} node {number}: " + ("was not running" if running is None else "killed"))


@sandbox_app.command()
def pause(cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR) -> None:
    """Let brokers hang (SIGSTOP): they keep their connections, and answer nothing."""
    site = _sandbox(dir).cluster(cluster)
    for number in site.nodes(node):
        site.stop_process(number)
        typer.echo(f"{site.name} node {number}: hangs")


@sandbox_app.command()
def resume(cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR) -> None:
    """Let brokers that hang go on."""
    site = _sandbox(dir).cluster(cluster)
    for number in site.nodes(node):
        site.cont_process(number)
        typer.echo(f"{site.name} node {number}: goes on")


@sandbox_app.command("fill-disk")
def fill_disk(cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR) -> None:
    """Let brokers find their disk full: no file takes another byte, and they end. `up` starts them again, with room."""
    site = _sandbox(dir).cluster(cluster)
    for number in site.nodes(node):
        site.fill_disk(number)
        typer.echo(f"{site.name} node {number}: its disk seems full")


@sandbox_app.command()
def slow(
    cluster: ClusterArgument,
    latency: Annotated[float, typer.Option("--latency-ms", min=0.1, help="Of the link to it, each way.")],
    node: NodeOption = None,
    dir: DirOption = DEFAULT_DIR,
) -> None:
    """Let a cluster be far away: what Mirrorbook sends to it and gets from it takes its time. Needs `up --link`."""
    _weather(cluster, node, dir, f"{latency:g} ms away, each way", delay_ms=latency)


@sandbox_app.command()
def partition(cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR) -> None:
    """Cut Mirrorbook off from a cluster that goes on serving its applications. Needs `up --link`."""
    _weather(cluster, node, dir, "cut off", stalled=True)


@sandbox_app.command()
def heal(cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR) -> None:
    """Let the link to a cluster be as it was before `slow` or `partition`."""
    _weather(cluster, node, dir, "near by")


def _weather(
    cluster: str, node: int | None, dir: Path, words: str, *, delay_ms: float = 0.0, stalled: bool = False
) -> None:
    sandbox = _sandbox(dir)
    site = sandbox.cluster(cluster)
    numbers = site.nodes(node)
    sandbox.link.becomes(site.link_ports(node), Weather(delay_ms=delay_ms, stalled=stalled))
    for number in numbers:
        typer.echo(f"{site.name} node {number}: {words}")
