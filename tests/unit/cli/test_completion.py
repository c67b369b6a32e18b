"""Names that a shell completes from mirrorbook.yaml; those that clusters know are completed on brokers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirror_core.cli.command_options import complete_runs
from mirror_core.kafka.config import Config
from mirror_core.model.names import ClusterName
from mirror_core.model.timing import TIMEOUTS
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.cli_process import completed

FILE = """
clusters:
  east: {bootstrap.servers: "127.0.0.1:1"}
  west: {bootstrap.servers: "127.0.0.1:2"}
sets:
  payments: {mirrors: [orders]}
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("cluster", "check", ""), ["east", "west"]),
        (("cluster", "unfence", "w"), ["west"]),
        (("failover", "run-set", "p"), ["payments"]),
        (("mirror", "describe", ""), []),
        (("runs", "show", ""), []),
    ],
    ids=" ".join,
)
def test_names_of_the_file_are_offered_and_dead_clusters_have_none(
    words: tuple[str, ...], offered: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "mirrorbook.yaml"
    file.write_text(FILE, encoding="utf-8")
    assert completed(file, *words) == offered


def test_a_cluster_has_as_long_as_the_limits_give_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a machine is slow they are longer, here too."""
    asked = list[float]()

    def states(config: Config, timeout_s: float) -> Iterator[tuple[ClusterName, State]]:
        asked.append(timeout_s)
        yield from ()

    file = tmp_path / "mirrorbook.yaml"
    file.write_text(FILE, encoding="utf-8")
    monkeypatch.setattr(mirror_link, "read_states", states)
    monkeypatch.setattr(logging, "disable", lambda level: None)
    assert complete_runs(SimpleNamespace(params={"config": str(file)}), "") == []
    assert asked == [TIMEOUTS.completion_s]


@pytest.mark.parametrize("text", [None, "clusters: [", "clusters: {east: {security.protocol: PLAIN}}"])
def test_without_a_file_that_can_be_read_nothing_is_offered_and_nothing_said(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "mirrorbook.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    assert completed(file, "cluster", "check", "") == []
