"""The part `By hand` of the page to try it, typed as it stands there, says what stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from mirrorbook_tools.sandbox.sandbox import Sandbox
from tests.support.cli_process import MIRRORBOOK

pytestmark = [pytest.mark.cluster, pytest.mark.drill, pytest.mark.slow, pytest.mark.spark]

ROOT: Final = Path(__file__).resolve().parents[2]
QUESTIONS: Final = ("failover run", "failback run")
DIFFERENT: Final = {
    r"\d+(?:\.\d+)? kB": "N kB",
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r"\([\w-]{22}\)": "(ID)",
}
"""What no two runs have in common."""


def typed() -> list[tuple[str, list[str]]]:
    """Commands, and the lines below each."""
    _, _, rest = (ROOT / "docs" / "try.md").read_text(encoding="utf-8").partition("## By hand\n\n```\n")
    block, _, _ = rest.partition("\n```\n")
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:].partition("#")[0].strip(), []))
        else:
            found[-1][1].append(line)
    return [(command, said) for command, said in found if command.startswith(("mirrorbook ", "python docs/"))]


def alike(lines: list[str]) -> list[str]:
    for pattern, word in DIFFERENT.items():
        lines = [re.sub(pattern, word, line) for line in lines]
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where one stands, with `mirrorbook` among the programs; no broker is left behind."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mirrorbook"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(MIRRORBOOK)} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    yield tmp_path
    Sandbox(tmp_path / ".sandbox").down(delete=True)


def test_what_is_typed_by_hand_says_what_is_shown(folder: Path) -> None:
    checkout = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": checkout, "COLUMNS": "160"}
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    commands = typed()
    assert len(commands) > 8
    for command, shown in commands:
        answered = f"{command} --yes" if any(words in command for words in QUESTIONS) else command
        done = subprocess.run(
            answered, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        said = iter(alike(done.stdout.splitlines()))
        missing = [line for line in alike(shown) if line not in said]  # in this order
        assert not missing, f"{command}: not said: {missing}\n{done.stdout}"
