"""Whatever ends the demonstration: what it has started runs no more, and nobody else's process is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mirror_core.model.errors import BadRequest, MirrorError, Refused
from mirror_core.supervisor.process_identity import MachineIdentity
from mirrorbook_tools.demo import processes as known_processes
from mirrorbook_tools.demo import workdir as place_room
from mirrorbook_tools.demo.commands import Commands
from mirrorbook_tools.demo.environment import MARKER, Stage
from mirrorbook_tools.demo.interrupts import Interrupts
from mirrorbook_tools.demo.loss_check import judge
from mirrorbook_tools.demo.processes import Processes, end_known, session_of
from mirrorbook_tools.demo.scenario import Story
from mirrorbook_tools.demo.scenario_runner import play
from mirrorbook_tools.demo.summary import StoryResult
from mirrorbook_tools.demo.terminal_screen import Screen
from mirrorbook_tools.demo.workdir import LOCK_FILE, Place
from mirrorbook_tools.demo.workload import StoryFailed
from mirrorbook_tools.sandbox.process import is_alive
from mirrorbook_tools.sandbox.sandbox import Sandbox
from tests.support.waiting import wait_until

DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {DEAF!r}])"
"""Has a child that does not heed SIGTERM."""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    place = Place(tmp_path / "demo", MARKER)
    with Interrupts() as interrupts, place.claimed():
        found = Processes(place, interrupts)
        yield found
        found.stop_all()


def family(processes: Processes, tmp_path: Path) -> list[psutil.Process]:
    """A parent and its child, both at work."""
    out = tmp_path / "out"
    processes.start("parent", [sys.executable, "-c", PARENT], out=out)
    wait_until(lambda: "deaf" in out.read_text(encoding="utf-8"), timeout_s=30, why="the child is at work")
    return session_of(only_leader(tmp_path))


def only_leader(tmp_path: Path) -> int:
    with pytest.raises(Refused, match="another demonstration is at work"), Place(tmp_path / "demo", MARKER).claimed():
        pass
    (leader,) = Place(tmp_path / "demo", MARKER)._read().leaders
    return leader


def test_children_of_children_end_too_also_when_they_are_deaf(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_processes, "STOP_S", 1.0)
    members = family(processes, tmp_path)
    assert len(members) == 2

    assert processes.stop_all() == 1

    assert not any(map(is_alive, members))


def test_children_of_one_that_died_end_too(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_processes, "STOP_S", 1.0)
    members = family(processes, tmp_path)
    leader = only_leader(tmp_path)
    next(process for process in members if process.pid == leader).kill()
    wait_until(lambda: processes.ended("parent") is not None, timeout_s=30, why="the parent is dead")
    assert any(map(is_alive, members))

    assert processes.stop_all() == 0

    assert not any(map(is_alive, members))


def test_the_exit_code_of_one_that_had_to_be_killed_is_not_0(processes: Processes, tmp_path: Path) -> None:
    processes.start("deaf", [sys.executable, "-c", DEAF], out=tmp_path / "out")
    wait_until(lambda: "deaf" in (tmp_path / "out").read_text(encoding="utf-8"), timeout_s=30, why="it is at work")

    assert processes.stop("deaf", timeout_s=0.1) == -signal.SIGKILL


def test_the_next_demonstration_ends_what_a_killed_one_has_left(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_processes, "STOP_S", 1.0)
    members = family(processes, tmp_path)
    (note,) = [Place(tmp_path / "demo", MARKER)._read().leaders]

    end_known(dict.fromkeys(note, 1))
    assert all(map(is_alive, members)), "another start: it is a stranger with the same number"
    end_known(note)

    assert not any(map(is_alive, members))


def test_numbers_of_before_a_restart_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, MARKER)
    monkeypatch.setattr(place_room, "get_machine", lambda: MachineIdentity("other", "boot"))
    place.note({os.getpid(): 1}, kept=True)
    monkeypatch.undo()

    with place.claimed() as left:
        assert (left.leaders, left.kept) == ({}, True)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadRequest, match="holds something else"):
        play(tmp_path, keep=False)
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(BadRequest, match="not a folder"):
        play(tmp_path / "thesis.tex", keep=False)
    with pytest.raises(BadRequest, match=r"cannot be written: Not a directory; choose another --dir"):
        play(tmp_path / "thesis.tex" / "below", keep=False)


def test_a_damaged_note_is_said_and_not_guessed(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text('{"leaders": ', encoding="utf-8")
    with pytest.raises(BadRequest, match=r"demo\.json cannot be read"), Place(tmp_path, MARKER).claimed():
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_waits_for_what_must_be_whole(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    done = []
    with Interrupts() as interrupts:

        def whole() -> None:
            with interrupts.held():
                with interrupts.held():
                    signal.raise_signal(number)
                done.append("whole")

        with pytest.raises(KeyboardInterrupt):
            whole()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert done == ["whole"]
    assert signal.getsignal(number) is before


# -- the whole, without brokers -----------------------------------------------------------------------------------


def told() -> StoryResult:
    return StoryResult(verdict=judge(east=[], west=[], acknowledged=[], handled=[]), lost=frozenset())


def ended_by(ending: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> list[psutil.Process]:
    """A story that starts a process, and ends so; that process."""
    started: list[psutil.Process] = []

    def tell(story: Story) -> StoryResult:
        stage = story._stage
        stage.processes.start("some", [sys.executable, "-c", "import signal; signal.pause()"], out=stage.said / "some")
        started.append(psutil.Process(stage.processes._children["some"].pid))
        if ending is not None:
            raise ending
        return told()

    monkeypatch.setattr(Story, "tell", tell)
    return started


def test_ctrl_c_stops_what_was_started_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = ended_by(KeyboardInterrupt(), monkeypatch)

    assert play(tmp_path / "demo", keep=True) == 130

    assert not is_alive(started[0])
    said = capsys.readouterr().out
    assert "everything is stopped: 0 broker(s), 1 other process(es)" in said, "--keep is for a story that was told"
    assert "interrupted: all that the demonstration had started is stopped" in said


def test_a_failure_stops_what_was_started_and_names_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = ended_by(MirrorError("no"), monkeypatch)

    with pytest.raises(MirrorError, match="no") as error:
        play(tmp_path / "demo", keep=False)

    assert not is_alive(started[0])
    assert error.value.__notes__ == [f"logs are in {tmp_path / 'demo'}"]


def test_nothing_to_judge_is_exit_code_4_and_where_to_go_next_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = ended_by(None, monkeypatch)

    assert play(tmp_path / "demo", keep=False) == 4

    assert not is_alive(started[0])
    said = capsys.readouterr().out
    assert "INDETERMINATE" in said
    assert "docs/try.md" in said
    assert "make demo" in said


def test_clusters_that_were_kept_are_not_stopped_by_the_next_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    stopped: list[bool] = []

    def down(_sandbox: Sandbox, delete: bool = False) -> int:
        stopped.append(delete)
        return 0

    monkeypatch.setattr(Sandbox, "down", down)
    monkeypatch.setattr(Sandbox, "running", lambda self: [])
    ended_by(None, monkeypatch)
    play(folder, keep=True)
    assert stopped == [True], "cleared at the beginning, and left running at the end"

    monkeypatch.setattr(Sandbox, "running", lambda self: [psutil.Process()])
    with pytest.raises(Refused, match=f"mirrorbook sandbox down --delete --dir {folder}/sandbox"):
        play(folder, keep=False)
    assert stopped == [True]

    monkeypatch.setattr(Sandbox, "running", lambda self: [])
    assert play(folder, keep=False) == 4
    assert stopped == [True, True, False]


def test_a_command_that_fails_is_named_with_its_own_words(tmp_path: Path) -> None:
    with Interrupts() as interrupts, Screen(sys.stdout) as screen:
        stage = Stage(tmp_path / "demo", screen, interrupts)
        with stage:
            commands = Commands(stage.config, stage.said, stage.processes, screen, lambda: None)
            with pytest.raises(StoryFailed) as error:
                commands.run("mirror", "describe", "orders")
    said = str(error.value)
    assert said.startswith("mirrorbook mirror describe orders: exit code 2\nerror: no configuration at ")


def test_a_killed_demonstration_leaves_its_folder_to_the_next_one(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from mirrorbook_tools.demo.workdir import Place\n"
        f"with Place(Path(sys.argv[1]), {MARKER!r}).claimed(): print('claimed', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(Refused), Place(tmp_path, MARKER).claimed():
            pass
        other.kill()
    assert (tmp_path / LOCK_FILE).exists()
    with Place(tmp_path, MARKER).claimed() as left:
        assert not left.kept
