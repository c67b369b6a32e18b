"""An MM2 pair moves over by the page, with producers and consumers at work: nothing is lost, repeats are as told."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import NewTopic

from mirrorbook_tools.sandbox.broker import java_command
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.drill.mirror_maker import MirrorMaker, Reader, Shop, mirror_maker, write_properties
from tests.support.cli_process import MIRRORBOOK
from tests.support.cluster_admin import tool_properties
from tests.support.data_errors import about_data
from tests.support.dedicated_clusters import two_clusters
from tests.support.doc_pages import DOCS, ROOT
from tests.support.kafka_clients import TIMEOUT_S, Pair, admin_client
from tests.support.topic_equality import ends
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.heavy]

PAGE: Final = DOCS / "operate" / "from-mirrormaker.md"
PATIENCE_S: Final = patience(180.0)
PARTITIONS: Final = 3
TOPIC: Final = "orders"
COPY: Final = f"east.{TOPIC}"
SOME: Final = 300
AUDITED: Final = 40
RESET: Final = "kafka-consumer-groups.sh"


def typed(step: str) -> list[str]:
    """The page's lines of a step."""
    (screen,) = re.findall(
        rf"<!-- screen of {step}: begin -->\n```\n(.*?)```\n", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return [line[2:].partition("  #")[0].strip() for line in screen.splitlines() if line.startswith("$ ")]


class Desk:
    """Where one stands, with `mirrorbook` and Kafka's tool among the programs."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self.folder = folder
        (folder / "mirrorbook.yaml").write_text(pair.config_path.read_text(encoding="utf-8"), encoding="utf-8")
        tool_properties(pair.west, folder).rename(folder / "admin.properties")
        programs = folder / "bin"
        programs.mkdir()
        tool = java_command(
            pair.west.brokers[0].jars, "256m", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        )
        for name, command in (("mirrorbook", MIRRORBOOK), (RESET, tool)):
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
            (programs / name).chmod(0o755)
        checkout = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment: Mapping[str, str] = {
            **os.environ,
            "PYTHONPATH": checkout,
            "COLUMNS": "160",
            "XDG_STATE_HOME": str(folder / "state"),
            "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def type(self, command: str, *, expected: int = 0) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        print(f"$ {command}\n{done.stdout}{done.stderr}")
        assert done.returncode == expected, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def left_running(self, command: str) -> Iterator[None]:
        with (self.folder / "supervise.out").open("wb") as out:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.wait()


def test_readers_of_prefixed_topics_move_over_by_the_page(tmp_path: Path) -> None:
    for folder in ("clusters", "desk"):
        (tmp_path / folder).mkdir()
    with two_clusters(tmp_path / "clusters") as pair, ExitStack() as at_work:  # their topics have the page's names
        desk = Desk(tmp_path / "desk", pair)
        write_properties(pair, desk.folder / "mm2.properties", {})
        admin = admin_client(pair.east)  # kept: collected with a future pending, it would abandon the request
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(TIMEOUT_S)
        shop = Shop(pair.east, TOPIC, PARTITIONS)
        billing, reports, audit = Reader(pair.east, "billing"), Reader(pair.west, "reports"), Reader(pair.west, "audit")
        at_work.enter_context(billing.reading(TOPIC))
        with shop.open():
            copier = at_work.enter_context(mirror_maker(pair, desk.folder / "mm2.properties", tmp_path / "mm2.log"))
            copier.wait_for(lambda: count_offsets(pair.west, COPY) > 0, "MirrorMaker has begun")
            with audit.reading(COPY, at_most=AUDITED):
                copier.wait_for(lambda: audit.count(COPY) == AUDITED * PARTITIONS, "audit has read its part")
            with reports.reading(COPY):
                read_on(copier, reports)
                copier.kill()
                copier.start()  # it repeats what it had not noted down
                read_on(copier, reports)
                at_work.enter_context(begin_mirror(desk))
                wanted = count_offsets(pair.east, TOPIC)
                copier.wait_for(lambda: count_offsets(pair.west, TOPIC) >= wanted, "the mirror has copied it")
                for line in typed("the comparison"):
                    desk.type(line)
                read_on(copier, reports)
            table = move_readers(desk, (reports.group, audit.group))
            for reader in (reports, audit):
                at_work.enter_context(reader.reading(TOPIC))
            copier.wait_for(lambda: reports.count(TOPIC) >= SOME, "reports reads on in the new copy")
        copier.kill()
        for reader in (reports, audit):
            why = f"{reader.group} has handled all {len(shop.acknowledged)} orders"
            wait_until(partial(has_handled_all, reader, shop), timeout_s=PATIENCE_S, why=why)
    for reader in (reports, audit):
        check_handled(reader, shop, [row for (group, _), row in table.items() if group == reader.group])
    assert all(row["carried"] for (group, _), row in table.items() if group == billing.group)


def has_handled_all(reader: Reader, shop: Shop) -> bool:
    return shop.acknowledged <= reader.handled[TOPIC].keys() | reader.handled[COPY].keys()


def read_on(copier: MirrorMaker, reader: Reader) -> None:
    before = reader.count(COPY)
    copier.wait_for(lambda: reader.count(COPY) >= before + SOME, f"{reader.group} reads {SOME} more")


def begin_mirror(desk: Desk) -> AbstractContextManager[None]:
    """By the page, whose commands are those that are printed."""
    (line,) = typed("import mm2")
    printed = desk.type(line).splitlines()
    *commands, supervise = typed("the copy")
    assert set(commands) <= set(printed)
    assert any(supervise.startswith(command) for command in printed if " supervise " in command)
    for command in commands:
        asks = " create " in command and "--dry-run" not in command
        desk.type(f"{command} --yes" if asks else command)
    return desk.left_running(supervise)


def move_readers(desk: Desk, groups: Collection[str]) -> dict[tuple[str, int], dict[str, Any]]:
    """The table of all groups; offsets are set by the lines that are printed for one after the other."""
    (line,) = typed("the readers")
    everybody = line.partition(" --groups")[0]
    table = json.loads(desk.type(f"{everybody} --json"))["readers"]
    shown = [without_addresses(command) for command in typed("setting the offsets")]
    for group in groups:
        said = desk.type(line.replace("reports", group)).splitlines()
        commands = [command for command in said if command.startswith(RESET)]
        assert [without_addresses(command).replace(group, "reports") for command in commands] == shown
        for command in commands:
            desk.type(command)
    return {(row["group"], row["partition"]): row for row in table}


def without_addresses(command: str) -> str:
    return re.sub(r"--bootstrap-server \S+ ", "", command)


@about_data()
def check_handled(reader: Reader, shop: Shop, rows: list[dict[str, Any]]) -> None:
    old, new = reader.handled[COPY], reader.handled[TOPIC]
    assert not shop.acknowledged - old.keys() - new.keys(), "lost"
    assert new.keys() <= shop.acknowledged, "invented"
    assert set(new.values()) == {1}, "twice in the new copy"
    assert len(rows) == PARTITIONS
    repeated, told = len(old.keys() & new.keys()), sum(row["repeats"] for row in rows)
    print(f"{reader.group}: {len(old)} old, {len(new)} new, {repeated} again, {told} told")
    print(f"{reader.group}: {old.total() - len(old)} times MirrorMaker's repeats, before the move")
    aborted = sum(value.startswith(b"aborted") for value in old)
    print(f"{reader.group}: {aborted} aborted orders in the old copy")
    assert aborted, "the move was not tried with records that only the old copy has"
    assert repeated <= told
    assert {row["certainty"] for row in rows} <= {"exact", "clamped"}
    if all(row["certainty"] == "exact" for row in rows):
        assert repeated == 0


def count_offsets(cluster: SandboxCluster, topic: str) -> int:
    """Sum of the partitions' log ends; 0 while there is no such topic."""
    known = admin_client(cluster).list_topics(timeout=TIMEOUT_S).topics
    return sum(ends(cluster, [topic]).values()) if topic in known else 0
