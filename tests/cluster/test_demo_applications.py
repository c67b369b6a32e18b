"""The demo's applications lose and double nothing by themselves: its verdict must be about Mirrorbook, not them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from mirrorbook_tools.demo.discovery import Discovery
from mirrorbook_tools.demo.logs import PARTITIONS, TOPIC, read_events, read_log
from mirrorbook_tools.demo.loss_check import judge
from mirrorbook_tools.sandbox.sandbox import Sandbox
from tests.support.kafka_clients import TIMEOUT_S, admin_client
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """Of its own: the applications' topic has one name, they number from 0, and the broker is killed."""
    sandbox = Sandbox(tmp_path / "sandbox")
    sandbox.up()
    try:
        admin = admin_client(sandbox.cluster("east"))
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(TIMEOUT_S)
        yield sandbox
    finally:
        sandbox.down(delete=True)


def start(application: str, sandbox: Sandbox, folder: Path) -> subprocess.Popen[bytes]:
    with open(folder / f"{application}.log", "wb") as log:
        command = [sys.executable, "-m", f"mirrorbook_tools.demo.{application}", str(sandbox.dir), str(folder)]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def deny_writing() -> AclBinding:
    literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
    return AclBinding(ResourceType.TOPIC, TOPIC, literal, "User:*", "*", AclOperation.WRITE, deny)


def refuse_writes_for_a_while(sandbox: Sandbox, folder: Path) -> None:
    """As a fence that is taken away again, after many attempts: some are refused by the broker, some by the client."""
    admin, binding = admin_client(sandbox.cluster("east")), deny_writing()
    admin.create_acls([binding])[binding].result(TIMEOUT_S)
    log = folder / "producer.log"
    wait_until(
        lambda: log.read_text(encoding="utf-8").count("TOPIC_AUTHORIZATION_FAILED") >= 20,
        timeout_s=60,
        why="writes are refused again and again",
    )
    fence = AclBindingFilter(
        binding.restype, TOPIC, ResourcePatternType.LITERAL, "User:*", "*", binding.operation, binding.permission_type
    )
    admin.delete_acls([fence])[fence].result(TIMEOUT_S)


def kill_the_broker(sandbox: Sandbox, folder: Path) -> None:
    east = sandbox.cluster("east")
    east.kill()
    east.start()


@pytest.mark.slow  # in the gate, the demonstration does it whole
@pytest.mark.parametrize("disturb", [refuse_writes_for_a_while, kill_the_broker])
def test_nothing_is_lost_or_doubled_when_writes_fail_in_the_middle(
    sandbox: Sandbox, tmp_path: Path, disturb: Callable[[Sandbox, Path], None]
) -> None:
    Discovery(tmp_path / "primary").switch("east")
    properties = sandbox.cluster("east").client_config("app")
    producer, consumer = start("producer", sandbox, tmp_path), start("consumer", sandbox, tmp_path)
    try:

        def acked() -> int:
            return len(read_events(tmp_path / "acknowledged.tsv"))

        wait_until(lambda: acked() > 300, timeout_s=60, why="the producer gets acknowledgements")
        disturb(sandbox, tmp_path)
        before = acked()
        wait_until(lambda: acked() > before + 300, timeout_s=60, why="the producer goes on")
        producer.send_signal(signal.SIGTERM)
        assert producer.wait(60) == 0
        acknowledged = read_events(tmp_path / "acknowledged.tsv")
        numbers = {event.number for event in acknowledged}
        wait_until(
            lambda: numbers <= {event.number for event in read_events(tmp_path / "handled.tsv")},
            timeout_s=60,
            why="the consumer handles every order",
        )
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait(60) == 0
    finally:
        for process in (producer, consumer):
            process.kill()
            process.wait()

    log = list(read_log(properties))
    verdict = judge(east=log, west=log, acknowledged=acknowledged, handled=read_events(tmp_path / "handled.tsv"))
    assert verdict.exit_code == 0, verdict.lines()
    assert {entry.number for entry in log} == numbers, "every number that was begun is written and known"
