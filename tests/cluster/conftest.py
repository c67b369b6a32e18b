"""Fixtures for tests with real brokers."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirror_core.cli.main import main
from mirrorbook_tools.sandbox.cluster import SandboxCluster
from tests.cluster.desk import PROGRESS, Desk, Said
from tests.support import kafka_clients
from tests.support.json_schemas import check_document
from tests.support.kafka_clients import Pair
from tests.support.shifted_clock import ShiftedClock


@pytest.fixture
def new_user(pair: Pair) -> Iterator[Callable[..., tuple[str, str]]]:
    """Makes users without any right on these clusters. What is granted to them anywhere goes after the test."""
    made: list[str] = []

    def make(*clusters: SandboxCluster) -> tuple[str, str]:
        name, password = kafka_clients.new_user(*clusters)
        made.append(name)
        return name, password

    yield make
    for cluster in (pair.east, pair.west):
        for name in made:
            kafka_clients.forget_user(cluster, name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    return ShiftedClock(monkeypatch)


@pytest.fixture
def desk(
    pair: Pair,
    new_user: Callable[[SandboxCluster], tuple[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Desk]:
    """Commands run in this process, by the entry point that a terminal would call: each start would cost seconds."""
    monkeypatch.delenv("MIRRORBOOK_CONFIG", raising=False)
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "mirrorbook.yaml").write_text(pair.config_path.read_text(encoding="utf-8"), encoding="utf-8")

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["mirrorbook", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:  # any other exception would be a traceback on a terminal
            main()
        spoken = capsys.readouterr()
        assert "Traceback" not in spoken.out + spoken.err
        assert isinstance(ended.value.code, int)
        check_document(arguments, spoken.out)
        return Said(ended.value.code, spoken.out, PROGRESS.sub("", spoken.err))

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Desk(pair, folder, run, new_user)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def unchanged(desk: Desk) -> Iterator[None]:
    """Nothing was left behind by the test's commands."""
    before = desk.traces()
    yield
    assert desk.traces() == before
