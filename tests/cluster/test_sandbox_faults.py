"""The sandbox when things go wrong: killed half-way, a port taken, a disk that refuses, strangers near by."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mirrorbook_tools.sandbox.broker import MAIN_CLASS
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.ports import HOST
from mirrorbook_tools.sandbox.process import running
from mirrorbook_tools.sandbox.sandbox import Sandbox
from mirrorbook_tools.sandbox.state import STATE_FILE
from mirrorbook_tools.sandbox.storage_format import ARGUMENTS_FILE
from tests.support.cli_process import MIRRORBOOK
from tests.support.kafka_clients import Pair
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(tmp_path / "own")
    yield sandbox
    sandbox.down(delete=True)
    assert not sandbox.dir.exists()


def up_process(sandbox: Sandbox, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*MIRRORBOOK, "sandbox", "up", "--dir", str(sandbox.dir)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )


def properties_of(sandbox: Sandbox, name: str) -> Path:
    return sandbox.dir / name / "1" / "server.properties"


def brokers_of(sandbox: Sandbox) -> list[int]:
    files = [properties_of(sandbox, name) for name in ("east", "west")]
    return sorted(process.pid for process in running(MAIN_CLASS, files))


def kill_up_when(sandbox: Sandbox, cond: Callable[[], object], why: str) -> None:
    with up_process(sandbox) as doomed:
        wait_until(cond, timeout_s=60, why=why)
        doomed.send_signal(signal.SIGKILL)
        doomed.communicate()


def test_up_goes_on_after_one_that_was_killed_while_formatting(own: Sandbox) -> None:
    arguments = own.dir / "west" / "1" / ARGUMENTS_FILE
    kill_up_when(own, arguments.exists, "west is being formatted")
    own.up()
    assert own.cluster("east").answering(1) == own.cluster("west").answering(1) == [1]
    assert not arguments.exists()


def test_up_takes_over_the_broker_that_a_killed_one_has_started_and_down_stops_only_ours(
    own: Sandbox, pair: Pair
) -> None:
    kill_up_when(own, lambda: brokers_of(own), "the first broker runs")
    orphans = brokers_of(own)
    own.up()
    ours = brokers_of(own)
    assert len(ours) == 2
    assert set(orphans) <= set(ours)

    stranger_runs_on = str(properties_of(own, "east").with_name("other.properties"))
    idle = "import sys; sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", idle, MAIN_CLASS, stranger_runs_on], stdin=subprocess.PIPE
    ) as stranger:
        assert own.down() == 2
        assert brokers_of(own) == []
        assert stranger.poll() is None
    assert pair.east.pid() is not None
    assert pair.west.pid() is not None


def test_a_taken_port_is_named_and_nothing_is_left_running(own: Sandbox) -> None:
    kill_up_when(own, (own.dir / STATE_FILE).exists, "ports are chosen")
    own.down()
    port = own.state.clusters["west"].nodes[0].client
    with closing(socket.create_server((HOST, port))), pytest.raises(SandboxFailed, match=f"port {port} is taken"):
        own.up()
    assert brokers_of(own) == []


def test_a_disk_that_refuses_writes_is_reported_and_does_not_block_the_next_up(own: Sandbox) -> None:
    def small_files_only() -> None:  # as a full disk does: small files fit, the broker's indexes don't
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    with up_process(own, small_files_only) as limited:
        _, complaint = limited.communicate()
    assert limited.returncode == 1
    assert complaint.startswith("error: east node 1 ")
    assert "ended while starting" in complaint
    assert "File too large" in complaint
    assert "Traceback" not in complaint
    assert brokers_of(own) == []
    own.up()
    assert len(brokers_of(own)) == 2
