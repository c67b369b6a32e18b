"""Commands of installed packages: found by their entry point, and nothing of ours depends on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from mirror_core.cli.lazy_group import COMMANDS, find_installed_commands
from tests.support.declared_commands import write_distribution

MODULE: Final = """
from mirror_core.cli.lazy_group import LazyCommand

def greet() -> None:
    print("hello")

COMMANDS = {"greet": LazyCommand("greeting", "greet", "Say hello."), "mirror": LazyCommand("greeting", "greet", "No.")}
"""


def run_with(folder: Path, entry_point: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command where a package with this entry point is installed."""
    folder.mkdir(exist_ok=True)
    (folder / "greeting.py").write_text(MODULE, encoding="utf-8")
    write_distribution(folder, {"greeting": entry_point})
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, "-m", "mirror_core", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def test_the_tools_are_commands_of_an_installed_package() -> None:
    assert set(find_installed_commands()) == {"demo", "sandbox", "import", "log"}
    assert not COMMANDS.keys() & find_installed_commands().keys()


def test_a_package_adds_a_command(tmp_path: Path) -> None:
    done = run_with(tmp_path, "greeting:COMMANDS", "greet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_added_commands_are_listed_with_ours(tmp_path: Path) -> None:
    done = run_with(tmp_path, "greeting:COMMANDS", "--help")
    assert "Say hello." in done.stdout
    assert "failover" in done.stdout


def test_commands_are_grouped_those_of_an_emergency_first_and_flags_have_no_type(tmp_path: Path) -> None:
    text = run_with(tmp_path, "greeting:COMMANDS", "--help").stdout
    panels = ["Emergency and recovery", "Mirrors and copying", "Checks and evidence", "Other commands"]
    assert sorted(panels, key=text.index) == panels
    assert text.index("Other commands") < text.index("Say hello.")
    options = run_with(tmp_path / "again", "greeting:COMMANDS", "failover", "run", "--help").stdout
    group_options = run_with(tmp_path / "group", "greeting:COMMANDS", "mirror", "--help").stdout
    assert all("<bool>" not in shown for shown in (text, options, group_options))


def test_a_command_of_ours_stays_ours(tmp_path: Path) -> None:
    done = run_with(tmp_path, "greeting:COMMANDS", "mirror", "--help")
    assert "create" in done.stdout
    assert "No." not in done.stdout


@pytest.mark.parametrize(("entry_point", "why"), [("gone:COMMANDS", "No module named 'gone'"), ("greeting:X", "'X'")])
def test_a_broken_package_is_named_and_hinders_none_of_our_commands(entry_point: str, why: str, tmp_path: Path) -> None:
    done = run_with(tmp_path / "asked", entry_point, "greet")
    assert done.returncode == 2
    assert f"error: the commands of {entry_point} cannot be loaded" in done.stderr
    assert why in done.stderr
    assert run_with(tmp_path / "ours", entry_point, "mirror", "--help").returncode == 0


def test_a_command_that_nobody_has_is_refused(tmp_path: Path) -> None:
    done = run_with(tmp_path, "greeting:COMMANDS", "sandbocks")
    assert done.returncode == 2
    assert "No such command 'sandbocks'" in done.stderr
