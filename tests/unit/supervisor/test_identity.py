"""A status names a process; whoever else has that number, on whatever machine, is never signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.model.errors import Refused
from mirror_core.model.names import MirrorName
from mirror_core.supervisor import lifecycle
from mirror_core.supervisor.directory import SupervisorDirectory, SupervisorStatus, make_own_status
from mirror_core.supervisor.process_identity import ProcessIdentity, get_machine, read_start_ticks
from tests.support.sentences import format_sentence

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
    ("change", "said"),
    [
        ({"host": "mirror-2"}, format_sentence("process_on_another_host_pattern")),
        ({"boot": "another"}, format_sentence("another_container_or_boot")),
        ({"started": 1}, "is not the one that was meant"),
        ({"started": None}, "is not the one that was meant"),
        ({"host": "", "boot": "", "started": None}, r"runs on host \(unknown\)"),
    ],
)
def test_nobody_is_signalled_who_is_not_provably_the_supervisor(
    tmp_path: Path, stranger: int, change: dict[str, object], said: str
) -> None:
    home = SupervisorDirectory(tmp_path, MIRROR)
    home.create()
    home.write_status(replace(of(stranger, home.log), **change))  # type: ignore[arg-type]
    with home.hold_lock(), pytest.raises(Refused, match=said) as refused:
        lifecycle.stop_supervisor(tmp_path, MIRROR, timeout_s=1)
    assert "nobody was signalled" in str(refused.value)


def test_where_the_system_tells_nothing_nobody_is_signalled(
    tmp_path: Path, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = SupervisorDirectory(tmp_path, MIRROR)
    home.create()
    monkeypatch.setattr("mirror_core.supervisor.process_identity._BOOT_ID", tmp_path / "none")
    home.write_status(of(stranger, home.log))
    with home.hold_lock(), pytest.raises(Refused, match="nothing tells whether process"):
        lifecycle.stop_supervisor(tmp_path, MIRROR, timeout_s=1)


def test_a_number_that_changes_hands_at_the_last_moment_saves_the_newcomer(
    tmp_path: Path, stranger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = of(stranger, tmp_path).process
    looks: list[int] = []

    def one_then_another(pid: int) -> int | None:
        looks.append(pid)
        return meant.started if len(looks) == 1 else 0

    monkeypatch.setattr("mirror_core.supervisor.process_identity.read_start_ticks", one_then_another)
    assert "is not the one that was meant" in (meant.signal(signal.SIGTERM) or "")
    assert len(looks) == 2


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
