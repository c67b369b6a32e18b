"""Brokers start from an archive of their classes: one that the JVM takes, and that is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorbook_tools.sandbox import archive
from mirrorbook_tools.sandbox.broker import archive_of, java_command, run_tool
from mirrorbook_tools.sandbox.jars import ensure_jars

TOOL = ("org.apache.kafka.tools.GetOffsetShell", "--version")


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """As in a user's cache in which nothing was archived."""
    folder = tmp_path / "jars"
    folder.mkdir()
    for jar in ensure_jars().glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    return folder


@pytest.mark.cluster
@pytest.mark.slow
def test_a_broker_takes_its_classes_from_an_archive_that_was_made_once(
    jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not archive_of(jars).exists()
    assert "SharedArchiveFile" not in " ".join(java_command(jars, "1m"))
    monkeypatch.setattr("mirrorbook_tools.sandbox.sandbox.jars_dir", lambda: jars)
    made = archive.make(jars)
    assert made == archive_of(jars)
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xshare:on")  # ends with an error if the archive is not used
    assert f"-XX:SharedArchiveFile={made}" in java_command(jars, "1m")
    done = run_tool(jars, *TOOL)
    assert done.returncode == 0, done.stderr
    was = made.stat().st_mtime_ns
    assert (archive.make(jars), made.stat().st_mtime_ns) == (made, was)
