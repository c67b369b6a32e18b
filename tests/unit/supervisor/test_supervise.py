"""A supervisor with real processes, and children that are small scripts: nothing here is about Kafka."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.errors import BadRequest
from mirror_core.model.logs import LogSettings
from mirror_core.model.names import MirrorName
from mirror_core.supervisor import directory
from mirror_core.supervisor.child_commands import build_replicate_command
from mirror_core.supervisor.directory import SupervisorDirectory, SupervisorStatus, make_own_status
from mirror_core.supervisor.process_identity import get_machine, read_start_ticks
from mirror_core.supervisor.supervisor import (
    FIRST_DELAY_S,
    HEALTHY_S,
    MAX_DELAY_S,
    REFUSED_DELAY_S,
    compute_next_delay_s,
)
from tests.support.detached_supervisor import read_supervisor_status
from tests.support.sentences import format_sentence
from tests.support.waiting import patience, wait_until

MIRROR = MirrorName("east/west")
TIMEOUT_S = patience(30.0)
SUPERVISOR = """
import sys
from pathlib import Path
from mirror_core.supervisor.supervisor import Supervisor
from mirror_core.model.errors import MirrorError
from mirror_core.model.names import MirrorName
home, mirror, script, *more = sys.argv[1:]
command = [sys.executable, "-c", script]
try:
    refused = [sys.executable, "-c", *more] if more else ()
    say = lambda text: print(text, flush=True)
    Supervisor(Path(home), MirrorName(mirror), command, print_text=say, refusal_command=refused).run()
except MirrorError as error:
    print(error)
    sys.exit(error.exit_code)
"""
STEADY = "import signal; print('here I am', flush=True); signal.pause()"
POLITE = """
import signal, sys, time
def end(*_):
    print("tidied up", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("here I am", flush=True)
while True:
    signal.pause()
"""


@contextmanager
def supervisor(home: Path, script: str, *refused: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SUPERVISOR, str(home), MIRROR, script, *refused]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def running(home: Path, script_says: str = "here I am") -> SupervisorStatus:
    """The status once a child is up and has said so."""

    def up() -> SupervisorStatus | None:
        found = read_supervisor_status(home, MIRROR)
        if found is None or found.child_pid is None or not psutil.pid_exists(found.child_pid):
            return None
        return found if Path(found.log).read_text().count(script_says) > found.restarts else None

    found = wait_until(up, timeout_s=TIMEOUT_S, why="the supervisor has a child")
    assert found is not None
    return found


def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    with supervisor(tmp_path, STEADY) as process:
        first = running(tmp_path)
        assert first.pid == process.pid
        assert first.child_pid is not None
        os.kill(first.child_pid, signal.SIGKILL)

        def another() -> bool:
            now = running(tmp_path)
            return now.child_pid != first.child_pid and now.restarts == 1

        wait_until(another, timeout_s=TIMEOUT_S, why="a new child runs")
        assert running(tmp_path).last_exit == -signal.SIGKILL


def test_sigterm_stops_the_child_cleanly_and_waits_for_it(tmp_path: Path) -> None:
    with supervisor(tmp_path, POLITE) as process:
        found = running(tmp_path)
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        assert "replicate stopped, exit code 0" in out
        assert Path(found.log).read_text().splitlines() == ["here I am", "tidied up"]
        assert found.child_pid is not None
        assert not psutil.pid_exists(found.child_pid)
        assert read_supervisor_status(tmp_path, MIRROR) is None


def test_a_second_supervisor_refuses_and_names_the_first(tmp_path: Path) -> None:
    with supervisor(tmp_path, STEADY) as first:
        found = running(tmp_path)
        with supervisor(tmp_path, STEADY) as second:
            out, _ = second.communicate(timeout=TIMEOUT_S)
            assert second.returncode == 3
            assert f"process {first.pid} on this host does so already" in out
        assert running(tmp_path) == found


def test_a_killed_supervisor_takes_its_child_along_and_makes_room(tmp_path: Path) -> None:
    with supervisor(tmp_path, POLITE) as doomed:
        found = running(tmp_path)
        assert found.child_pid is not None
        child = psutil.Process(found.child_pid)
        doomed.kill()
        doomed.wait(TIMEOUT_S)
        wait_until(lambda: not child.is_running(), timeout_s=TIMEOUT_S, why="the child follows its parent")
        assert Path(found.log).read_text().splitlines() == ["here I am", "tidied up"]
    last = read_supervisor_status(tmp_path, MIRROR)
    assert last is not None
    assert not last.alive
    with supervisor(tmp_path, STEADY):
        now = wait_until(
            lambda: seen if (seen := read_supervisor_status(tmp_path, MIRROR)) and seen.alive else None,
            timeout_s=TIMEOUT_S,
            why="the next supervisor takes over",
        )
        assert now is not None
        assert now.pid != found.pid


def test_a_killed_supervisors_last_word_is_not_taken_for_its_successors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    home = SupervisorDirectory(tmp_path, MIRROR)
    home.create()
    home.write_status(SupervisorStatus(mirror=MIRROR, pid=gone.pid, since_ms=1, log=""))
    looks: list[bool] = []

    def held(self: SupervisorDirectory) -> bool:
        """The successor has the lock at once, and writes its status a moment later."""
        looks.append(True)
        if len(looks) == 3:
            self.write_status(make_own_status(MIRROR, 2, self.log))
        return True

    monkeypatch.setattr(SupervisorDirectory, "is_locked", held)
    found = read_supervisor_status(tmp_path, MIRROR)
    assert found is not None
    assert (found.alive, found.pid) == (True, os.getpid())


def test_a_supervisor_says_which_process_of_which_machine_it_is(tmp_path: Path) -> None:
    with supervisor(tmp_path, STEADY) as process:
        found = running(tmp_path)
        assert found.process.machine == get_machine()
        assert found.started == read_start_ticks(process.pid) is not None
        assert found.process.is_running()


@pytest.mark.parametrize("code", [2, 3, 5])
def test_what_only_a_person_changes_is_tried_again_calmly(tmp_path: Path, code: int) -> None:
    with supervisor(tmp_path, f"import sys; print('no, because', flush=True); sys.exit({code})") as process:
        found = wait_until(
            lambda: now if (now := read_supervisor_status(tmp_path, MIRROR)) and now.last_exit is not None else None,
            timeout_s=TIMEOUT_S,
            why="the child has ended once",
        )
        assert found is not None
        assert found.last_exit == code
        assert found.child_pid is None
        assert found.last_ended_ms is not None
        assert found.next_start_ms == found.last_ended_ms + REFUSED_DELAY_S * 1000
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_S)
        assert f"ended with exit code {code}" in out
        assert "it said: no, because" in out


def test_whenever_it_is_refused_the_watch_has_its_turn_and_then_it_is_tried_again(tmp_path: Path) -> None:
    impatient = SUPERVISOR.replace(
        "home, mirror", "import mirror_core.supervisor.supervisor as s; s.CALM_S = 0.2\nhome, mirror"
    )
    log = tmp_path / "east%2Fwest" / "replicate.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "SUPERVISOR", impatient)
        with supervisor(tmp_path, "import sys; print('no'); sys.exit(3)", "print('looked')") as process:
            wait_until(
                lambda: log.exists() and log.read_text().split()[:4] == ["no", "looked", "no", "looked"],
                timeout_s=TIMEOUT_S,
                why="both take turns",
            )
            process.terminate()
            out, _ = process.communicate(timeout=TIMEOUT_S)
    assert "replicate ended with exit code 3" in out
    assert "watch starts in 0.5 s; it said: no" in out


def test_a_child_that_dies_for_another_reason_gives_no_turn_to_the_watch(tmp_path: Path) -> None:
    with supervisor(tmp_path, "import sys; print('down', flush=True); sys.exit(1)", "print('looked')"):
        log = tmp_path / "east%2Fwest" / "replicate.log"
        wait_until(lambda: log.exists() and log.read_text().count("down") > 1, timeout_s=TIMEOUT_S, why="tried again")
        assert "looked" not in log.read_text()


def test_a_child_that_will_not_stop_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        "print('here I am', p.pid, flush=True); signal.pause()"
    )
    impatient = SUPERVISOR.replace(
        "home, mirror", "import mirror_core.supervisor.supervisor as s; s.STOP_TIMEOUT_S = 1\nhome, mirror"
    )
    monkeypatch.setitem(globals(), "SUPERVISOR", impatient)
    with supervisor(tmp_path, stubborn) as process:
        found = running(tmp_path)
        grandchild = psutil.Process(int(Path(found.log).read_text().split()[-1]))
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_S)
        assert "did not stop within 1 s: killed" in out
        wait_until(
            lambda: not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE,
            timeout_s=TIMEOUT_S,
            why="what the child started is gone",
        )


def test_the_log_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = SUPERVISOR.replace(
        "home, mirror", "import mirror_core.supervisor.directory as s; s.MAX_LOG_BYTES = 100\nhome, mirror"
    )
    monkeypatch.setitem(globals(), "SUPERVISOR", small)
    talker = "print('x' * 300, flush=True); import os; os.kill(os.getpid(), 9)"
    with supervisor(tmp_path, talker):
        log = tmp_path / "east%2Fwest" / "replicate.log"
        wait_until(log.with_name("replicate.log.1").exists, timeout_s=TIMEOUT_S, why="the log is put aside")
        assert log.with_name("replicate.log.1").stat().st_size == 301


def test_a_full_disk_costs_the_old_log_and_not_the_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_text("hal")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(directory, "MAX_LOG_BYTES", 100)
    monkeypatch.setattr(shutil, "copyfile", full)
    made = SupervisorDirectory(tmp_path, MIRROR)
    made.create()
    made.log.write_text("x" * 101)
    made.rotate_log()
    assert made.log.read_text() == ""
    assert not list(made.log.parent.glob("replicate.log.*"))


def said_again(home: Path, times: int) -> None:
    log = home / "east%2Fwest" / "replicate.log"
    wait_until(
        lambda: log.exists() and log.read_text().count("here I am") == times, timeout_s=TIMEOUT_S, why="a new child"
    )


@pytest.mark.parametrize("full", ["status", "output", "log"])
def test_a_full_disk_costs_the_supervisors_words_and_not_its_child(tmp_path: Path, full: str) -> None:
    """Nobody else starts copying again."""
    with supervisor(tmp_path, STEADY) as process:
        first = running(tmp_path)
        assert first.child_pid is not None
        if full == "status":
            (tmp_path / "east%2Fwest" / "status.new").mkdir()  # what is written there is refused, as on a full disk
        elif full == "log":
            (tmp_path / "east%2Fwest" / "replicate.log").unlink()  # by somebody who made room
        else:
            assert process.stdout is not None
            process.stdout.close()
        os.kill(first.child_pid, signal.SIGKILL)
        said_again(tmp_path, 1 if full == "log" else 2)
        assert process.poll() is None


def test_a_child_that_could_not_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = """
import mirror_core.supervisor.supervisor as s
real, left = s.start_tethered, [1]
def start_tethered(command, out):
    if left:
        left.pop()
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return real(command, out)
s.start_tethered = start_tethered
home, mirror"""
    monkeypatch.setitem(globals(), "SUPERVISOR", SUPERVISOR.replace("home, mirror", short.lstrip(), 1))
    with supervisor(tmp_path, STEADY) as process:
        said_again(tmp_path, 1)
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_S)
    assert format_sentence("replicate_not_started", 11, "0.5") in out


def test_options_that_end_replicate_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="--until-caught-up"):
        build_replicate_command(tmp_path / "mirrorbook.yaml", MIRROR, ["--until-caught-up"], LogSettings())


@given(ends=st.lists(st.tuples(st.sampled_from([-9, 0, 1, 2, 3, 4, 5]), st.floats(0, 100)), max_size=30))
def test_delays_grow_stay_bounded_and_forget_after_health(ends: list[tuple[int, float]]) -> None:
    delay = 0.0
    for code, ran_s in ends:
        before, delay = delay, compute_next_delay_s(code, ran_s, delay)
        assert FIRST_DELAY_S <= delay <= MAX_DELAY_S
        if code in (2, 3, 5):
            assert delay == REFUSED_DELAY_S
        elif ran_s >= HEALTHY_S:
            assert delay == FIRST_DELAY_S
        else:
            assert delay == MAX_DELAY_S or delay >= 2 * before
