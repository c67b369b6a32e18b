"""What is compared: Mirrorbook in its own process, on Spark, and MirrorMaker 2 as it comes and as experts tune it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mirror_core.sandbox.broker import java_command
from mirror_core.sandbox.cluster import SandboxCluster
from mirror_core.sandbox.sandbox import Sandbox

COPIERS: Final = ("local", "spark", "mm2-tuned", "mm2-default")
MIRRORBOOK: Final = (sys.executable, "-m", "mirror_core")
STOP_S: Final = 60.0

MM2_COMMON: Final = {
    "clusters": "east, west",
    "east->west.enabled": "true",
    "west->east.enabled": "false",
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
    "east.consumer.fetch.max.bytes": "67108864",
    "east.consumer.max.partition.fetch.bytes": "8388608",
    "east.consumer.fetch.min.bytes": "65536",
    "east.consumer.fetch.max.wait.ms": "100",
    "east.consumer.max.poll.records": "5000",
    "east.consumer.receive.buffer.bytes": "1048576",
    "west.producer.batch.size": "262144",
    "west.producer.linger.ms": "20",
    "west.producer.buffer.memory": "67108864",
    "west.producer.max.request.size": "8388608",
    "west.producer.send.buffer.bytes": "1048576",
}


@contextmanager
def running(kind: str, sandbox: Sandbox, config: Path, topic: str, codec: str) -> Iterator[subprocess.Popen[bytes]]:
    """One copier at work on one topic; stopped when left."""
    log = sandbox.dir.parent / f"{kind}.log"
    if kind.startswith("mm2"):
        command = _mirror_maker(sandbox, topic, codec, tuned=kind == "mm2-tuned")
        name = None
    else:
        name = f"bench-{secrets.token_hex(4)}"
        _mirrorbook(
            config, "mirror", "create", name, "--source=east", "--destination=west", f"--topics={topic}", "--yes"
        )
        _mirrorbook(config, "mirror", "start", name)
        options = [f"--runner={kind}", "--until-caught-up", "--json", f"--receipts={sandbox.dir.parent / 'receipts'}"]
        command = [*MIRRORBOOK, "replicate", name, f"--config={config}", *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if name is not None:
            _mirrorbook(config, "mirror", "stop", name, "--yes")
            _mirrorbook(config, "mirror", "delete", name, "--yes")


def _mirrorbook(config: Path, *arguments: str) -> None:
    subprocess.run([*MIRRORBOOK, *arguments, f"--config={config}"], check=True, stdout=subprocess.DEVNULL)


def _mirror_maker(sandbox: Sandbox, topic: str, codec: str, *, tuned: bool) -> list[str]:
    properties = {**MM2_COMMON, "topics": topic}
    for name in ("east", "west"):
        properties |= _connection(sandbox.cluster(name))
    if tuned:
        # The source's codec: MirrorMaker decompresses, and would send everything uncompressed.
        properties |= {**MM2_TUNED, "west.producer.compression.type": codec}
    path = sandbox.dir.parent / "mm2.properties"
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.writelines(f"{key} = {value}\n" for key, value in properties.items())
    jars = sandbox.cluster("east").brokers[0].jars
    return java_command(jars, "1g", "org.apache.kafka.connect.mirror.MirrorMaker", str(path))


def _connection(cluster: SandboxCluster) -> dict[str, str]:
    config = cluster.client_config("admin")
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return {
        f"{cluster.name}.bootstrap.servers": config["bootstrap.servers"],
        f"{cluster.name}.security.protocol": config["security.protocol"],
        f"{cluster.name}.sasl.mechanism": config["sasl.mechanism"],
        f"{cluster.name}.sasl.jaas.config": (
            f'{login} username="{config["sasl.username"]}" password="{config["sasl.password"]}";'
        ),
    }
