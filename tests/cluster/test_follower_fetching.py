"""Leaders that send readers to another replica (KIP-392): we are served by the leader, and nothing becomes a gap."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark
import pytest

from mirror_core.java import find_java_home
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_offsets
from mirror_core.kafka.log_reader import LogReader
from mirror_core.model.names import Offset, Partition
from mirrorbook_tools.sandbox.jars import ensure_jars
from tests.support.data_errors import about_data
from tests.support.kafka_clients import TIMEOUT_S, Pair, new_topic, produce, read_all
from tests.support.mirrored_topics import new_mirror
from tests.support.separate_cluster import in_place_of

pytestmark = pytest.mark.cluster

SELECTOR: Final = "Elsewhere"
SOURCE: Final = f"""
import java.util.Optional;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.replica.*;

public class {SELECTOR} implements ReplicaSelector {{
    public Optional select(TopicPartition partition, ClientMetadata client, PartitionView view) {{
        return Optional.of(new ReplicaView.DefaultReplicaView(new Node(99, "127.0.0.1", 1), 0L, 0L));
    }}
    public void configure(java.util.Map settings) {{}}
    public void close() {{}}
}}
"""
"""Sends every consumer to broker 99, whatever rack it says that it is in."""


def jars_with_selector(folder: Path) -> Path:
    """The sandbox's jars, and one with the selector. Spark brings a compiler."""
    jars, classes = folder / "jars", folder / "classes"
    jars.mkdir()
    classes.mkdir()
    for jar in ensure_jars().glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    code = folder / f"{SELECTOR}.java"
    code.write_text(SOURCE, encoding="utf-8")
    spark = Path(pyspark.__file__).parent / "jars"
    compiler = ":".join(str(jar) for name in ("janino", "commons-compiler") for jar in spark.glob(f"{name}-*.jar"))
    kafka = ":".join(str(jar) for jar in jars.glob("kafka-clients-*.jar"))
    main = "org.codehaus.commons.compiler.samples.CompilerDemo"
    command = [str(find_java_home() / "bin" / "java"), "-cp", f"{compiler}:{kafka}", main]
    subprocess.run([*command, "-d", str(classes), "-classpath", kafka, str(code)], check=True, timeout=TIMEOUT_S)
    with zipfile.ZipFile(jars / "selector.jar", "w") as out:
        out.write(classes / f"{SELECTOR}.class", f"{SELECTOR}.class")
    return jars


@pytest.fixture(scope="module")
def elsewhere(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A source whose leader wants to be read nowhere but on broker 99."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with in_place_of(pair, "east", folder, jars_with_selector(folder), {"replica.selector.class": SELECTOR}) as found:
        yield found


@about_data()
def test_a_leader_that_sends_readers_elsewhere_is_read_all_the_same(elsewhere: Pair, tmp_path: Path) -> None:
    topic = new_topic(elsewhere.east, partitions=2)
    sent = [record for number in range(2) for record in produce(elsewhere.east, topic, 300, partition=number)]
    mirrored = new_mirror(elsewhere, tmp_path, topic)
    mirrored.copy()
    assert read_all(elsewhere.west, topic) == sent, "a gap in place of records"
    source = mirrored.config.cluster("east")
    partitions = [Partition(topic, number) for number in range(2)]
    with ClusterClient(source) as client, LogReader(source) as reader:
        ends = list_offsets(client, partitions, OffsetPoint.STABLE_END)
        for partition in partitions:
            found = [record.value for _, record in reader.records(partition, Offset(0), ends[partition])]
            assert found == [record.value for record in sent if record.partition == partition.index]
