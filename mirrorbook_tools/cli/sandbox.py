"""`mirrorbook sandbox`: parse, call, print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mirror_core.model.errors import BadRequest
from mirror_core.model.json_documents import JsonDocument, format_json, prints_json
from mirrorbook_tools.sandbox.wan_proxy import Weather

if TYPE_CHECKING:
    from mirrorbook_tools.sandbox.cluster import SandboxCluster
    from mirrorbook_tools.sandbox.sandbox import Sandbox

sandbox_app = typer.Typer(help="Two small Kafka clusters of real brokers on this machine.", no_args_is_help=True)

DirOption = Annotated[Path, typer.Option("--dir", help="The sandbox's folder.")]
ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help="east or west.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
NodeOption = Annotated[int | None, typer.Option("--node", min=1, help="Only this node. Default: the whole cluster.")]
DEFAULT_DIR = Path(".sandbox")


def _open_sandbox(dir: Path, *, as_json: bool = False) -> Sandbox:
    # Imported late: `mirrorbook` without the extra `sandbox` must still start.
    try:
        from mirrorbook_tools.sandbox.sandbox import Sandbox
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"the sandbox needs the package {error.name}: install your Mirrorbook wheel with [sandbox]"
        ) from error
    return Sandbox(dir, say=partial(typer.echo, err=as_json))


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
    """The nodes of a sandbox, after what the command did."""

    dir: str
    nodes: tuple[SandboxNode, ...]


class SandboxConfigDocument(JsonDocument, frozen=True, kw_only=True):
    """A mirrorbook.yaml for both clusters."""

    dir: str
    yaml: str


def _print_outcome(dir: Path, lines: Iterable[str], *, as_json: bool) -> None:
    for line in lines:
        typer.echo(line, err=as_json)
    if as_json:
        _print_nodes(dir, _list_nodes(dir))


def _print_nodes(dir: Path, nodes: tuple[SandboxNode, ...]) -> None:
    typer.echo(format_json(SandboxDocument(dir=str(dir.absolute()), nodes=nodes)))


def _list_nodes(dir: Path) -> tuple[SandboxNode, ...]:
    return tuple(
        SandboxNode(
            cluster=cluster.name,
            node=broker.node,
            port=broker.ports.client,
            pid=(pid := cluster.pid(broker.node)),
            alive=pid is not None,
            answering=pid is not None and bool(cluster.answering(broker.node)),
        )
        for cluster in _open_sandbox(dir).clusters()
        for broker in cluster.brokers
    )


@sandbox_app.command()
@prints_json(SandboxDocument)
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
    as_json: JsonOption = False,
) -> None:
    """Start clusters `east` and `west`, or what of them is not running."""
    _open_sandbox(dir, as_json=as_json).up(nodes, link=link)
    _print_outcome(dir, ["ready"], as_json=as_json)


@sandbox_app.command()
@prints_json(SandboxDocument)
def down(
    dir: DirOption = DEFAULT_DIR,
    delete: Annotated[bool, typer.Option("--delete", help="Also remove all data, passwords and ports.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop the brokers of this sandbox, and no others."""
    stopped = _open_sandbox(dir, as_json=as_json).down(delete)
    typer.echo(f"{stopped} broker(s) stopped" + (", folder cleared" if delete else ""), err=as_json)
    if as_json:
        _print_nodes(dir, () if delete else _list_nodes(dir))


@sandbox_app.command()
@prints_json(SandboxDocument)
def status(dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Show each node: process, port, whether it answers."""
    rows = _list_nodes(dir)
    if as_json:
        _print_nodes(dir, rows)
        return
    for row in rows:
        state = "answering" if row.answering else "alive, not answering" if row.alive else "down"
        typer.echo(f"{row.cluster} node {row.node}  port {row.port}  pid {row.pid or '-'}  {state}")


@sandbox_app.command()
@prints_json(SandboxConfigDocument)
def config(dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False) -> None:
    """Print a mirrorbook.yaml for both clusters; passwords stay in the sandbox's own private file."""
    text = _open_sandbox(dir).mirrorbook_yaml()
    if as_json:
        typer.echo(format_json(SandboxConfigDocument(dir=str(dir.absolute()), yaml=text)))
        return
    typer.echo(text, nl=False)


def _act_on_nodes(
    dir: Path, cluster: str, node: int | None, act: Callable[[SandboxCluster, int], str], *, as_json: bool
) -> None:
    """`act` returns what became of a node."""
    site = _open_sandbox(dir, as_json=as_json).cluster(cluster)
    lines = (f"{site.name} node {number}: {act(site, number)}" for number in site.nodes(node))
    _print_outcome(dir, lines, as_json=as_json)


@sandbox_app.command()
@prints_json(SandboxDocument)
def kill(
    cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """Let brokers die, as a crash or a lost site does it (SIGKILL). `up` starts them again, on their data."""

    def kill_node(site: SandboxCluster, number: int) -> str:
        running = site.pid(number)
        site.kill(number)
        return "was not running" if running is None else "killed"

    _act_on_nodes(dir, cluster, node, kill_node, as_json=as_json)


@sandbox_app.command()
@prints_json(SandboxDocument)
def pause(
    cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """Let brokers hang (SIGSTOP): they keep their connections, and answer nothing."""

    def pause_node(site: SandboxCluster, number: int) -> str:
        site.stop_process(number)
        return "hangs"

    _act_on_nodes(dir, cluster, node, pause_node, as_json=as_json)


@sandbox_app.command()
@prints_json(SandboxDocument)
def resume(
    cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """Let brokers that hang go on."""

    def resume_node(site: SandboxCluster, number: int) -> str:
        site.cont_process(number)
        return "goes on"

    _act_on_nodes(dir, cluster, node, resume_node, as_json=as_json)


@sandbox_app.command("fill-disk")
@prints_json(SandboxDocument)
def fill_disk(
    cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """Let brokers find their disk full: no file takes another byte, and they end. `up` starts them again, with room."""

    def fill_node(site: SandboxCluster, number: int) -> str:
        site.fill_disk(number)
        return "its disk seems full"

    _act_on_nodes(dir, cluster, node, fill_node, as_json=as_json)


@sandbox_app.command()
@prints_json(SandboxDocument)
def slow(
    cluster: ClusterArgument,
    latency: Annotated[float, typer.Option("--latency-ms", min=0.1, help="Of the link to it, each way.")],
    node: NodeOption = None,
    dir: DirOption = DEFAULT_DIR,
    as_json: JsonOption = False,
) -> None:
    """Let a cluster be far away: what Mirrorbook sends to it and gets from it takes its time. Needs `up --link`."""
    _weather(cluster, node, dir, Weather(delay_ms=latency), as_json=as_json)


@sandbox_app.command()
@prints_json(SandboxDocument)
def partition(
    cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """Cut Mirrorbook off from a cluster that goes on serving its applications. Needs `up --link`."""
    _weather(cluster, node, dir, Weather(stalled=True), as_json=as_json)


@sandbox_app.command()
@prints_json(SandboxDocument)
def heal(
    cluster: ClusterArgument, node: NodeOption = None, dir: DirOption = DEFAULT_DIR, as_json: JsonOption = False
) -> None:
    """Let the link to a cluster be as it was before `slow` or `partition`."""
    _weather(cluster, node, dir, Weather(), as_json=as_json)


def _weather(cluster: str, node: int | None, dir: Path, weather: Weather, *, as_json: bool) -> None:
    sandbox = _open_sandbox(dir, as_json=as_json)
    site = sandbox.cluster(cluster)
    sandbox.link.becomes(site.link_ports(node), weather)
    _print_outcome(dir, (f"{site.name} node {number}: {weather}" for number in site.nodes(node)), as_json=as_json)
