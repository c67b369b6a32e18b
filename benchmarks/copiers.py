"""What is compared: Mirrorbook in its own process, on Spark, and MirrorMaker 2 as it comes and as experts tune it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.ground import DESTINATION, SOURCE, Ground, NotReached
from mirror_core.kafka.client import ClusterClient
from mirrorbook_tools.sandbox.broker import java_command
from mirrorbook_tools.sandbox.cluster import SandboxCluster

MIRRORBOOK: Final = ("local", "spark")
MIRROR_MAKER: Final = ("mm2-tuned", "mm2-default")
COPIERS: Final = (*MIRRORBOOK, *MIRROR_MAKER)
COMMAND: Final = (sys.executable, "-m", "mirror_core")
KEEP_ON: Final = (sys.executable, "-m", "benchmarks.keep_on")
STOP_S: Final = 60.0

MM2_COMMON: Final = {
    "clusters": f"{SOURCE}, {DESTINATION}",
    f"{SOURCE}->{DESTINATION}.enabled": "true",
    f"{DESTINATION}->{SOURCE}.enabled": "false",
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "sync.topic.acls.enabled": "false",
}
MM2_TUNED: Final = {
    "tasks.max": "4",
    f"{SOURCE}.consumer.fetch.max.bytes": "67108864",
    f"{SOURCE}.consumer.max.partition.fetch.bytes": "8388608",
    f"{SOURCE}.consumer.fetch.min.bytes": "65536",
    f"{SOURCE}.consumer.fetch.max.wait.ms": "100",
    f"{SOURCE}.consumer.max.poll.records": "5000",
    f"{SOURCE}.consumer.receive.buffer.bytes": "1048576",
    f"{DESTINATION}.producer.batch.size": "262144",
    f"{DESTINATION}.producer.linger.ms": "20",
    f"{DESTINATION}.producer.buffer.memory": "67108864",
    f"{DESTINATION}.producer.max.request.size": "8388608",
    f"{DESTINATION}.producer.send.buffer.bytes": "1048576",
}


@dataclass(frozen=True, slots=True)
class Copier:
    """One at work."""

    kind: str
    process: subprocess.Popen[bytes]
    log: Path
    receipts: Path
    """Mirrorbook's; empty for others."""

    def ended(self) -> bool:
        """Without burying it: a dead process that nobody has waited for still tells its CPU seconds."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return self.process.returncode is not None or os.waitid(os.P_PID, self.process.pid, flags) is not None

    def reaches(self, ground: Ground, client: ClusterClient, topic: str, wanted: int, timeout_s: float) -> int:
        """Wait until its copy's log ends add up to `wanted`; what they are then. NotReached, with its own words."""
        try:
            return ground.reached(client, topic, wanted, timeout_s, self.ended)
        except NotReached as error:
            raise NotReached(f"{error}: {self.last_words()}") from None

    def last_words(self) -> str:
        """Why it failed: its first line that says so, else its last one."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return next((line for line in lines if line.startswith(("FAILED", "error"))), lines[-1] if lines else "")


@contextmanager
def running(kind: str, ground: Ground, topic: str, codec: str, epoch_s: float | None = None) -> Iterator[Copier]:
    """One copier at work on one topic; stopped when left.

    Mirrorbook ends by itself when it has caught up; with `epoch_s` it goes on, in epochs of that length.
    """
    name = f"bench-{secrets.token_hex(4)}"
    receipts = ground.folder / "receipts" / name
    if kind in MIRROR_MAKER:
        command = _mirror_maker(ground, topic, codec, tuned=kind == "mm2-tuned")
    else:
        ends = (f"--source={SOURCE}", f"--destination={DESTINATION}")
        _mirrorbook(ground, "mirror", "create", name, *ends, f"--topics={topic}", "--yes")
        _mirrorbook(ground, "mirror", "start", name)
        command = _replicate(name, kind, ground, receipts, epoch_s)
    log = ground.folder / f"{name}-{kind}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Copier(kind, process, log, receipts)
    finally:
        stop(process)
        if kind in MIRRORBOOK:
            _mirrorbook(ground, "mirror", "stop", name, "--yes")
            _mirrorbook(ground, "mirror", "delete", name, "--yes")


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL when that isn't heeded."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _replicate(name: str, runner: str, ground: Ground, receipts: Path, epoch_s: float | None) -> Sequence[str]:
    where = (f"--config={ground.config_path}", f"--runner={runner}", f"--receipts={receipts}")
    if epoch_s is None:
        return [*COMMAND, "replicate", name, *where, "--until-caught-up", "--json"]
    return [*KEEP_ON, name, *where, f"--epoch={epoch_s}"]


def _mirrorbook(ground: Ground, *arguments: str) -> None:
    subprocess.run([*COMMAND, *arguments, f"--config={ground.config_path}"], check=True, stdout=subprocess.DEVNULL)


def _mirror_maker(ground: Ground, topic: str, codec: str, *, tuned: bool) -> Sequence[str]:
    properties = {**MM2_COMMON, "topics": topic, **_connection(ground, ground.source)}
    properties |= _connection(ground, ground.destination)
    if tuned:
        # The source's codec: MirrorMaker decompresses, and would send everything uncompressed.
        properties |= {**MM2_TUNED, f"{DESTINATION}.producer.compression.type": codec}
    path = ground.folder / "mm2.properties"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.writelines(f"{key} = {value}\n" for key, value in properties.items())
    jars = ground.source.brokers[0].jars
    return java_command(jars, "1g", "org.apache.kafka.connect.mirror.MirrorMaker", str(path))


def _connection(ground: Ground, cluster: SandboxCluster) -> dict[str, str]:
    config = cluster.client_config("admin")
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        f"{cluster.name}.bootstrap.servers": ground.bootstrap(cluster),
        f"{cluster.name}.security.protocol": config["security.protocol"],
        f"{cluster.name}.sasl.mechanism": config["sasl.mechanism"],
        f"{cluster.name}.sasl.jaas.config": (
            f'{login} username="{config["sasl.username"]}" password="{config["sasl.password"]}";'
        ),
    }
