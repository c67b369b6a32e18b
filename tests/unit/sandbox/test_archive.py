"""Brokers start, whatever became of the archive of their classes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from mirrorbook_tools.sandbox import archive
from mirrorbook_tools.sandbox.broker import archive_of, java_command, run_tool
from mirrorbook_tools.sandbox.jars import ensure_jars


def test_a_jvm_starts_beside_an_archive_that_was_damaged(tmp_path: Path) -> None:
    """Its head says that it fits."""
    jars = tmp_path / "jars"
    jars.mkdir()
    shutil.copy(min(ensure_jars().glob("*.jar")), jars)
    made = archive_of(jars)
    command = java_command(jars, "256m")
    command[1:1] = [f"-XX:SharedArchiveFile={made}", "-Xshare:dump"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    content = bytearray(made.read_bytes())
    first, size = len(content) // 6, len(content) // 8
    content[first : first + size] = random.Random(1).randbytes(size)
    made.unlink()
    made.write_bytes(content)
    done = run_tool(jars, f"-XX:ErrorFile={tmp_path}/crash.log", "-version")
    assert (done.returncode, done.stdout) == (0, ""), "nothing that a tool has not said"


def test_a_cache_that_may_not_be_written_is_told_of_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13), str(tmp_path))

    monkeypatch.setattr(archive, "ensure_jars", lambda: tmp_path / "jars")
    monkeypatch.setattr("tempfile.TemporaryDirectory", refused)
    assert archive.main() != 0
    assert "archive of brokers' classes" in capsys.readouterr().err
