"""`mirrorbook sandbox` as a user sees it: lines, JSON, exit codes, no tracebacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli_process import mirrorbook
from tests.support.kafka_clients import TIMEOUT_S, Pair
from tests.support.sentences import format_sentence
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def test_up_on_a_running_sandbox_says_so_and_succeeds(pair: Pair) -> None:
    done = mirrorbook("sandbox", "up", "--dir", str(pair.sandbox.dir))
    assert (done.returncode, done.stderr) == (0, "")
    assert "already running" in done.stdout
    assert pair.east.bootstrap in done.stdout


@pytest.mark.slow
def test_status_tells_living_from_dead_nodes(pair: Pair) -> None:
    pair.west.kill()
    try:
        done = mirrorbook("sandbox", "status", "--json", "--dir", str(pair.sandbox.dir))
        plain = mirrorbook("sandbox", "status", "--dir", str(pair.sandbox.dir))
    finally:
        pair.west.start()
    assert done.returncode == 0
    port = int(pair.west.bootstrap.rpartition(":")[2])
    east, west = json.loads(done.stdout)["nodes"]
    assert (east["cluster"], east["pid"], east["alive"], east["answering"]) == ("east", pair.east.pid(), True, True)
    assert west == {"cluster": "west", "node": 1, "port": port, "pid": None, "alive": False, "answering": False}
    assert [line.split()[-1] for line in plain.stdout.splitlines()] == ["answering", "down"]


def test_a_site_hangs_dies_and_comes_back(pair: Pair) -> None:
    where = ("--dir", str(pair.sandbox.dir))
    before = pair.west.pid()
    try:
        paused = mirrorbook("sandbox", "pause", "west", *where)
        assert (paused.returncode, paused.stdout) == (0, "west node 1: hangs\n")
        assert pair.west.answering(1, timeout_s=1.0) == []
        assert pair.west.pid() == before
        resumed = mirrorbook("sandbox", "resume", "west", "--node", "1", *where)
        assert (resumed.returncode, resumed.stdout) == (0, "west node 1: goes on\n")
        # Suspended for longer than its session lasts, it is fenced for a moment, and no broker is named then.
        wait_until(lambda: pair.west.answering(1) == [1], timeout_s=TIMEOUT_S, why="west goes on")
        killed = mirrorbook("sandbox", "kill", "west", *where)
        assert (killed.returncode, killed.stdout) == (0, "west node 1: killed\n")
        assert pair.west.pid() is None
        assert mirrorbook("sandbox", "kill", "west", *where).stdout == "west node 1: was not running\n"
        assert "west node 1 is not running" in mirrorbook("sandbox", "pause", "west", *where).stderr
        assert mirrorbook("sandbox", "up", *where).returncode == 0
    finally:
        pair.west.start()
    assert pair.west.pid() not in (None, before)


def test_what_is_not_there_cannot_be_killed(pair: Pair) -> None:
    where = ("--dir", str(pair.sandbox.dir))
    for arguments, words in ((("north",), "not north"), (("west", "--node", "2"), "west has 1 node(s)")):
        done = mirrorbook("sandbox", "kill", *arguments, *where)
        assert done.returncode == 2
        assert words in done.stderr
    assert pair.west.pid() is not None


def test_config_prints_what_the_pair_uses(pair: Pair) -> None:
    done = mirrorbook("sandbox", "config", "--dir", str(pair.sandbox.dir))
    assert (done.returncode, done.stdout) == (0, pair.config_path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("verb", ["status", "config"])
def test_without_a_sandbox_there_is_one_line_and_exit_code_2(tmp_path: Path, verb: str) -> None:
    done = mirrorbook("sandbox", verb, "--dir", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr == format_sentence("no_sandbox_here", tmp_path / "none")


def test_a_wish_that_contradicts_the_folder_exits_with_2(pair: Pair) -> None:
    done = mirrorbook("sandbox", "up", "--nodes", "3", "--dir", str(pair.sandbox.dir))
    assert done.returncode == 2
    assert done.stderr.startswith("error: the sandbox in ")
    assert "Traceback" not in done.stderr


def test_down_where_nothing_runs_succeeds(tmp_path: Path) -> None:
    done = mirrorbook("sandbox", "down", "--dir", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (0, "0 broker(s) stopped\n")
