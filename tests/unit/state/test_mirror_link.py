"""Only a mirror's destination says what it is: any other cluster's record of it may be somebody else's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.kafka.config import Config, load_config
from mirror_core.model.errors import BadRequest, Indeterminate, MirrorError, Unreachable
from mirror_core.model.names import ClusterName
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.memory_state import MemoryLog
from tests.support.steps_mirror import MIRROR

EAST, WEST = ClusterName("east"), ClusterName("west")
OURS = replace(MIRROR, source=EAST, destination=WEST)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "mirrorbook.yaml"
    path.write_text('clusters:\n  east: {bootstrap.servers: "e:1"}\n  west: {bootstrap.servers: "w:1"}\n')
    return load_config(path)


def state(topics: str) -> State:
    log = MemoryLog()
    log.put(replace(OURS, topics=(topics,)))
    return log.state


def answering(monkeypatch: pytest.MonkeyPatch, answers: Mapping[ClusterName, State | MirrorError]) -> None:
    monkeypatch.setattr(mirror_link, "read_states", lambda config: iter(answers.items()))


def test_the_source_answers_first_and_is_not_asked_what_the_mirror_is(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, {EAST: state("payments"), WEST: state("orders")})
    found, known = mirror_link.find_mirror_link(config, OURS.name)
    assert found.mirror.topics == ("orders",)
    assert known.mirrors[OURS.name].topics == ("orders",)


def test_a_silent_destination_is_not_stood_in_for(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {EAST: state("payments"), WEST: Unreachable("cluster west: silent")})
    with pytest.raises(Indeterminate, match="cluster west: silent") as error:
        mirror_link.find_mirror_link(config, OURS.name)
    assert f"cluster east has a record of mirror {OURS.name} towards west" in str(error.value)


def test_who_renames_a_cluster_is_told_of_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {EAST: State(), ClusterName("new"): state("orders")})
    with pytest.raises(BadRequest, match=r"or mirrorbook\.yaml calls this cluster west no more"):
        mirror_link.find_mirror_link(config, OURS.name)


def test_where_nothing_could_be_read_no_mirror_is_called_unknown(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {EAST: Unreachable("cluster east: silent"), WEST: Unreachable("cluster west: silent")}
    answering(monkeypatch, silent)
    with pytest.raises(Indeterminate) as error:
        mirror_link.find_mirror_link(config, OURS.name)
    assert "not known" not in str(error.value)
    assert all(str(reason) in str(error.value) for reason in silent.values())
