"""A drill's group where its principal may not commit: the drill goes on, and says so."""

from __future__ import annotations

import pytest

from mirror_core.kafka import drill_consumer
from mirror_core.model.errors import MissingPermission
from mirror_core.model.names import Offset, Partition
from mirror_core.runbook.drill import DrillGroup
from tests.support.cluster_names import LINK

START = {Partition("t", 0): Offset(7)}


def test_a_group_goes_as_far_as_it_has_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(drill_consumer, "consume_and_commit", lambda config, *rest: asked.append(rest))
    group = DrillGroup(LINK, "mirrorbook.drill.m", START).consume(100).consume(25)
    assert group.committed == {Partition("t", 0): 7 + 125}
    assert asked == [
        ("mirrorbook.drill.m", START, {Partition("t", 0): 107}),
        ("mirrorbook.drill.m", {Partition("t", 0): 107}, {Partition("t", 0): 132}),
    ]


def test_one_that_may_not_is_not_tried_again_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def denied(*arguments: object) -> None:
        asked.append(arguments)
        raise MissingPermission("no READ")

    monkeypatch.setattr(drill_consumer, "consume_and_commit", denied)
    group = DrillGroup(LINK, "mirrorbook.drill.m", START).consume(100).consume(25)
    assert (group.skip_reason, group.committed, len(asked)) == ("not tried: no READ", START, 1)
