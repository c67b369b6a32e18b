"""Machines that share nothing but a network with this one: network namespaces, where they may be made (by root).

Elsewhere other loopback addresses stand for them: then nothing keeps them from 127.0.0.1, and only what is sent to an
address shows that it was the right one.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirrorbook_tools.sandbox.ports import choose_ports
from tests.support.dedicated_clusters import two_clusters
from tests.support.kafka_clients import Pair
from tests.support.wan_clusters import listen

IP: Final = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")


@dataclass(frozen=True, slots=True)
class Machine:
    address: str
    prefix: tuple[str, ...] = ()
    """Before a command that is to run there."""


@dataclass(frozen=True, slots=True)
class Machines:
    here: str
    """How they reach this machine."""
    others: tuple[Machine, ...]
    apart: bool
    """Whether they have a network of their own."""


@contextmanager
def machines(count: int) -> Iterator[Machines]:
    """So many besides this one."""
    with ExitStack() as stack:
        try:
            made = _namespaces(stack, count)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            print(f"no network namespaces here: {error}")
            others = tuple(Machine(f"127.0.1.{number}") for number in range(1, count + 1))
            made = Machines("127.0.0.4", others, apart=False)
        yield made


def _namespaces(stack: ExitStack, count: int) -> Machines:
    """Each with a cable to one switch; all of it is gone when `stack` is left."""
    net, name = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}", f"mb{secrets.token_hex(3)}"
    _ip("link", "add", "name", name, "type", "bridge")
    stack.callback(_ip, "link", "delete", name)
    _ip("addr", "add", f"{net}.1/24", "dev", name)
    _ip("link", "set", name, "up")
    for number in range(2, count + 2):
        space, ours, its = f"{name}-{number}", f"{name}o{number}", f"{name}i{number}"
        _ip("netns", "add", space)
        stack.callback(_ip, "netns", "delete", space)  # and with it its cable
        _ip("link", "add", ours, "type", "veth", "peer", "name", its, "netns", space)
        _ip("link", "set", ours, "master", name, "up")
        for command in (f"addr add {net}.{number}/24 dev {its}", f"link set {its} up", "link set lo up"):
            _ip("-n", space, *command.split())
    prefix = (IP or "ip", "netns", "exec")
    others = tuple(Machine(f"{net}.{number}", (*prefix, f"{name}-{number}")) for number in range(2, count + 2))
    return Machines(f"{net}.1", others, apart=True)


def _ip(*words: str) -> None:
    if IP is None:
        raise FileNotFoundError("no ip")
    subprocess.run([IP, *words], check=True, capture_output=True)


@contextmanager
def reachable_clusters(folder: Path, address: str) -> Iterator[Pair]:
    """As `two_clusters`; brokers listen at this address, too, and the configuration names it."""
    with two_clusters(folder) as pair:
        clusters = (pair.east, pair.west)
        chosen = list(zip(clusters, choose_ports(len(clusters)), strict=True))
        for cluster, port in chosen:
            cluster.terminate(1)
            listen(cluster, 1, port, port, address)
        for cluster in clusters:
            cluster.wait_ready({broker.node: broker.spawn() for broker in cluster.brokers}, whole_cluster=True)
        text = pair.config_path.read_text(encoding="utf-8")
        for cluster, port in chosen:
            text = text.replace(cluster.bootstrap, f"{address}:{port}")
        config = folder / "reachable.yaml"
        config.write_text(text, encoding="utf-8")
        yield Pair(sandbox=pair.sandbox, east=pair.east, west=pair.west, config_path=config)
