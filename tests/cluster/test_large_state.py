"""A mirror of 50,000 partitions in 10,000 topics: plans, checkpoints, reports and last offsets fit the state topic."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_core.kafka.config import load_config
from mirror_core.mirrors import mirror_commands
from mirror_core.mirrors.mirror_creation import create_mirror
from mirror_core.model.names import MirrorName
from mirror_core.state.mirror_link import find_mirror_link
from tests.cluster.large_state import NAME, PARTITIONS, STAGES
from tests.support.dedicated_clusters import two_clusters

pytestmark = [pytest.mark.cluster, pytest.mark.timed]

MOST_MIB = 64
MOST_S = 30


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """Clusters of its own: what is written here would make every other test's state slow to read."""
    with two_clusters(tmp_path) as pair:
        yield pair.config_path


def test_each_stage_of_a_run_takes_little_memory_and_time(config: Path, tmp_path: Path) -> None:
    clusters = load_config(config)
    create_mirror(clusters, MirrorName(NAME), source="east", destination="west", topics=("department.*",))
    mirror_commands.start_mirror(find_mirror_link(clusters, NAME)[0])
    took = {}
    for stage in STAGES:
        command = [sys.executable, "-m", "tests.cluster.large_state", stage, str(config), str(tmp_path / "evidence")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{stage}:\n{done.stderr[-3000:]}"
        took[stage] = json.loads(done.stdout)
    print(json.dumps(took, indent=2))
    (report,) = tmp_path.glob("evidence/run-*/run.json")
    document = json.loads(report.read_text(encoding="utf-8"))
    assert len(document["partitions"]) == PARTITIONS
    assert sum(len(rows) for _, rows in document["left"]["drain"]["DrainResult"]["positions"]["topics"]) == PARTITIONS
    assert (report.parent / "report.html").stat().st_size < 2 << 20, "nobody opens a page of that size"
    assert {s: t["mib"] for s, t in took.items() if t["mib"] > MOST_MIB} == {}, took
    # Seconds of work, not of the clock: other processes of a test run hold the machine as well.
    assert {s: t["worked"] for s, t in took.items() if max(t["worked"].values()) > MOST_S} == {}, took
