"""Names that a shell completes from mirrorbook.yaml; those that clusters know are completed on brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import completed

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


@pytest.mark.parametrize("text", [None, "clusters: [", "clusters: {east: {security.protocol: PLAIN}}"])
def test_without_a_file_that_can_be_read_nothing_is_offered_and_nothing_said(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "mirrorbook.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    assert completed(file, "cluster", "check", "") == []
