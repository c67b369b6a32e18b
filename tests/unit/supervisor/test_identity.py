"""A status names a process; whoever else has that number, on whatever machine, is not taken for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.names import MirrorName
from mirror_core.supervisor.directory import SupervisorDirectory, SupervisorStatus, make_own_status
from mirror_core.supervisor.process_identity import ProcessIdentity, get_machine, read_start_ticks

MIRROR = MirrorName("m1")


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is nobody's supervisor, and has the number that a status names."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process.pid
        assert process.poll() is None, "somebody has ended a process that is not ours"
        process.kill()


def of(pid: int, log: Path) -> SupervisorStatus:
    return replace(make_own_status(MIRROR, 1, log), pid=pid, started=read_start_ticks(pid))


@pytest.mark.parametrize(
    "change",
    [
        {"host": "mirror-2"},
        {"boot": "another"},
        {"started": 1},
        {"started": None},
        {"host": "", "boot": "", "started": None},
    ],
)
def test_a_process_is_the_supervisor_only_where_that_is_certain(
    tmp_path: Path, stranger: int, change: dict[str, object]
) -> None:
    status = of(stranger, tmp_path)
    assert status.process.is_running()
    assert not replace(status, **change).process.is_running()  # type: ignore[arg-type]


def test_where_the_system_tells_nothing_no_process_is_the_supervisor(
    tmp_path: Path, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirror_core.supervisor.process_identity._BOOT_ID", tmp_path / "none")
    assert not of(stranger, tmp_path).process.is_running()


def test_of_a_supervisor_on_another_host_a_second_one_says_where_it_is(tmp_path: Path) -> None:
    home = SupervisorDirectory(tmp_path, MIRROR)
    home.create()
    home.write_status(replace(of(os.getpid(), home.log), host="mirror-2"))
    with home.hold_lock(), pytest.raises(Refused, match=rf"process {os.getpid()} on host mirror-2 does so already"):
        home.hold_lock().__enter__()


def not_ours(pid: int, number: int) -> None:
    raise PermissionError


def test_a_process_has_ended_only_where_that_is_certain(stranger: int, monkeypatch: pytest.MonkeyPatch) -> None:
    living = ProcessIdentity(stranger, get_machine(), read_start_ticks(stranger))
    assert not living.has_ended()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        dead = ProcessIdentity(process.pid, get_machine(), read_start_ticks(process.pid))
        process.wait()
    assert dead.has_ended()
    assert replace(living, started=1).has_ended(), "another process has got its number"
    assert not replace(dead, started=None).has_ended()
    with monkeypatch.context() as patched:
        patched.setattr(
            "mirror_core.supervisor.process_identity.read_start_ticks", lambda pid: None
        )  # /proc may hide them
        assert not living.has_ended()
        assert dead.has_ended()
        patched.setattr(os, "kill", not_ours)
        assert not living.has_ended()
    for machine in (
        replace(get_machine(), host="elsewhere"),
        replace(get_machine(), boot="another"),
        replace(get_machine(), boot=""),
    ):
        assert not replace(dead, machine=machine).has_ended()
