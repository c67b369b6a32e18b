"""Game days on the sandbox: a site that is far away, cut off, or out of disk; and what heals each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import ClusterConfig, load_config
from mirror_core.model.errors import BadRequest, Unreachable
from mirrorbook_tools.sandbox.process import is_alive, running
from mirrorbook_tools.sandbox.sandbox import Sandbox
from mirrorbook_tools.sandbox.wan_process import MODULE, WEATHER_FILE
from tests.support.cli_process import mirrorbook
from tests.support.kafka_clients import Pair, new_topic, produce, read_all
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

FAR_MS = 150


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(tmp_path / "sandbox")
    try:
        sandbox.up(link=True)
        yield sandbox
    finally:
        sandbox.down(delete=True)


def said(sandbox: Sandbox, *arguments: str) -> str:
    done = mirrorbook("sandbox", *arguments, "--dir", str(sandbox.dir))
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds_to_ask(cluster: ClusterConfig) -> float:
    with ClusterClient(cluster) as client:
        client.metadata(())  # connections are made by the first question
        began = time.monotonic()
        client.metadata(())
        return time.monotonic() - began


def test_a_site_is_far_then_cut_off_then_without_room_and_each_time_comes_back(linked: Sandbox) -> None:
    (linked.dir.parent / "mirrorbook.yaml").write_text(said(linked, "config"), encoding="utf-8")
    config = load_config(linked.dir.parent / "mirrorbook.yaml")
    east, site = config.cluster("east"), linked.cluster("east")
    assert str(site.brokers[0].ports.client) not in said(linked, "config")

    assert "150 ms away" in said(linked, "slow", "east", "--latency-ms", str(FAR_MS))
    assert seconds_to_ask(east) >= 2 * FAR_MS / 1000

    assert said(linked, "partition", "east", "--node", "1") == "east node 1: cut off\n"
    with pytest.raises(Unreachable), ClusterClient(east, timeout_s=1.0) as client:
        client.metadata(())
    topic = new_topic(site)
    produce(site, topic, 10)  # applications near it notice nothing
    assert len(read_all(site, topic)) == 10
    with ClusterClient(config.cluster("west")) as client:
        client.metadata(())

    still_cut = "east node 1: still cut off; `mirrorbook sandbox heal east` ends that\n"
    assert still_cut in said(linked, "up")
    assert said(linked, "heal", "east") == "east node 1: near by\n"
    assert "still" not in said(linked, "up")
    with ClusterClient(east) as client:
        assert topic in client.metadata([topic]).topics

    process = site.brokers[0].process()
    assert process is not None
    assert said(linked, "fill-disk", "east") == "east node 1: its disk seems full\n"
    wait_until(lambda: not is_alive(process), timeout_s=60, why="a broker without a log directory ends")
    log = site.brokers[0].data_dir.parent / "broker.log"
    assert log.exists()
    said(linked, "up")
    assert len(read_all(site, topic)) == 10
    produce(site, topic, 10)

    link = next(running(MODULE, [linked.dir / WEATHER_FILE]))
    linked.down()
    assert not is_alive(link)


def test_what_needs_a_link_says_so_where_there_is_none(pair: Pair) -> None:
    where = ("--dir", str(pair.sandbox.dir))
    for arguments, words in (
        (("partition", "east"), "`up --link`"),
        (("slow", "west", "--latency-ms", "5"), "`up --link`"),
        (("up", "--link"), "made without a link"),
    ):
        done = mirrorbook("sandbox", *arguments, *where)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    with pytest.raises(BadRequest, match="made without a link"):
        pair.sandbox.up(link=True)
