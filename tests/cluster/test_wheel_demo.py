"""`mirrorbook demo` as somebody types it who has just installed it: told to its end, kept, and interrupted."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mirrorbook_tools.sandbox.sandbox import Sandbox
from tests.support.cli_process import MIRRORBOOK, mirrorbook
from tests.support.waiting import patience, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]  # a minute and more: two clusters come and go each time


def at_work_in(folder: Path) -> list[str]:
    """What runs that has to do with this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if str(folder) in words:
            found.append(words)
    return found


def number(line: str, said: str) -> float:
    (found,) = re.findall(rf"^{line}: ([\d,.]+)", said, re.MULTILINE)
    return float(found.replace(",", ""))


def test_the_demonstration_ends_with_an_exact_verdict_and_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "demo"

    done = mirrorbook("demo", "--dir", str(folder), timeout_s=300)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert at_work_in(folder) == []
    assert not re.search(r"[^\n\x20-\x7e]", done.stdout), "nothing that moves a cursor"
    assert number("acknowledged", done.stdout) > 1800, "600 orders in each of three acts"
    assert number("lost with east, as the plan said", done.stdout) < 1000, "it was cut off for half a second"
    assert number("lost beyond that", done.stdout) == number("repeated", done.stdout) == 0
    assert number("never read by the consumer group", done.stdout) == 0
    assert number("seconds without writes", done.stdout) > 0
    assert "offsets equal: yes\n" in done.stdout
    assert "\nEXACT: " in done.stdout
    assert [*folder.glob("evidence/run-*/report.html")], "what a run leaves is there to be read"


def test_clusters_that_are_kept_lead_home_and_are_stopped_by_the_line_that_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    done = mirrorbook("demo", "--dir", str(folder), "--keep", timeout_s=300)
    try:
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        assert len(at_work_in(folder)) == 1, "west, and nothing else"
        up, home, stop = (
            shlex.split(line.replace("\\\n", " ").removeprefix("$ mirrorbook "))
            for line in re.findall(r"^ *(\$ mirrorbook (?:[^\n]*\\\n)*[^\n]*)", done.stdout, re.MULTILINE)[-3:]
        )
        assert mirrorbook(*up).returncode == 0
        back = mirrorbook(*home, "--yes", timeout_s=300)
        assert back.returncode == 0, back.stdout + back.stderr
        assert mirrorbook(*stop).returncode == 0
    finally:
        Sandbox(folder / "sandbox").down()
    assert at_work_in(folder) == []


@contextmanager
def begun(folder: Path, until: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A demonstration that has come so far, and what it says."""
    out = folder.with_name(f"said-{until.replace(' ', '-')}")
    with open(out, "wb") as said:
        command = [*MIRRORBOOK, "demo", "--dir", str(folder)]
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    try:
        wait_until(lambda: until in out.read_text(encoding="utf-8"), timeout_s=180, why=f"it says {until!r}")
        yield process, out
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("act", ["answers on", "applications work on east", "replicate orders", "east was killed"])
def test_ctrl_c_at_any_moment_leaves_nothing_running(act: str, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    try:
        with begun(folder, act) as (process, out):
            process.send_signal(signal.SIGINT)
            assert process.wait(patience(60)) == 130
            assert at_work_in(folder) == []
    finally:
        Sandbox(folder / "sandbox").down()
    assert "interrupted: all that the demonstration had started is stopped" in out.read_text(encoding="utf-8")


def test_the_next_demonstration_ends_what_a_killed_one_has_left(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    try:
        with begun(folder, "west is") as (process, _):
            process.kill()
            process.wait()
            assert len(at_work_in(folder)) >= 6, "two brokers, the producer, two of the consumer, the data plane"
        with begun(folder, "jars:") as (process, _):  # said when all is cleared away
            process.send_signal(signal.SIGTERM)
            assert process.wait(patience(60)) == 130
        assert at_work_in(folder) == []
    finally:
        Sandbox(folder / "sandbox").down()
