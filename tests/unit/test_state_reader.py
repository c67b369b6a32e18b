"""How the state topic is read."""

from __future__ import annotations

import pytest

from mirror_core.kafka.config import ClusterConfig
from mirror_core.model.errors import Unreachable
from mirror_core.model.names import ClusterName
from mirror_core.state.topic import read_state


def test_it_is_read_from_its_leader_in_whatever_rack_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given = dict[str, object]()

    def refused(kind: object, cluster: ClusterConfig, properties: dict[str, object]) -> None:
        given.update(properties)
        raise Unreachable("as if nobody answered")

    monkeypatch.setattr("mirror_core.state.topic.client", refused)
    properties = {"bootstrap.servers": "127.0.0.1:1", "client.rack": "b"}
    with pytest.raises(Unreachable):
        read_state(ClusterConfig(ClusterName("west"), properties, properties))
    assert given["client.rack"] == "", "a follower's end may lie before the leader's"
