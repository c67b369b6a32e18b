"""What of the old source has to go, and which ways of taking it away are open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror_core.decide.mirror_snapshot import ClusterTopic
from mirror_core.decide.truncation import (
    MIN_KEPT_BYTES,
    AllowedStrategies,
    LogExtent,
    StrategyFacts,
    choose_strategies,
    estimate_costs,
    explain_objections,
    find_divergent_tails,
    find_obstacles,
    list_choice_figures,
    select_created,
)
from mirror_core.model.acl import Operation
from mirror_core.model.errors import BadRequest
from mirror_core.model.figures import FigureKey
from mirror_core.model.findings import Finding
from mirror_core.model.mirror import PartitionState, PartitionStatus
from mirror_core.model.names import MirrorName, Offset, Partition, get_heartbeat_topic
from mirror_core.model.run import FailbackStrategy

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
OLD = "a" * 32
TOPICS = {"a": ClusterTopic(id=OLD, partitions=2), "b": ClusterTopic(id=OLD, partitions=1)}
ENDS = {A0: Offset(10), A1: Offset(23), B0: Offset(5)}


def stopped(partition: Partition, lmo: int) -> PartitionStatus:
    return PartitionStatus(
        partition=partition,
        state=PartitionState.STOPPED,
        source_topic_id=OLD,
        destination_topic_id="b" * 32,
        lmo=Offset(lmo),
    )


FACTS = StrategyFacts(old_source="east")
STATUSES = {A0: stopped(A0, 10), A1: stopped(A1, 20), B0: stopped(B0, 5)}


def logs(ends: dict[Partition, Offset] = ENDS, start: int = 0) -> dict[Partition, LogExtent]:
    return {p: LogExtent(Offset(start), end) for p, end in ends.items()}


def said(allowed: AllowedStrategies, start: int = 0, topics: dict[str, ClusterTopic] = TOPICS) -> str:
    return "\n".join(map(str, explain_objections(STATUSES, topics, logs(start=start), allowed, FACTS)))


def test_strategies_are_given_for_all_topics_or_by_topic() -> None:
    assert AllowedStrategies.parse(()) == AllowedStrategies()
    assert AllowedStrategies.parse(("offline", "a=recreate")) == AllowedStrategies(
        FailbackStrategy.OFFLINE, {"a": FailbackStrategy.RECREATE}
    )
    for wrong in (("cut",), ("a=cut",), ("offline", "replica"), ("a=offline", "a=replica"), ("",)):
        with pytest.raises(BadRequest):
            AllowedStrategies.parse(wrong)


def test_a_choice_for_one_topic_goes_before_the_one_for_all() -> None:
    found = choose_strategies(STATUSES, TOPICS, ENDS, AllowedStrategies(FailbackStrategy.OFFLINE))
    assert found == {"a": FailbackStrategy.OFFLINE, "b": FailbackStrategy.NONE}
    found = choose_strategies(
        STATUSES,
        TOPICS,
        ENDS,
        AllowedStrategies(FailbackStrategy.OFFLINE, {"a": FailbackStrategy.REPLICA, "b": FailbackStrategy.RECREATE}),
    )
    assert found == {"a": FailbackStrategy.REPLICA, "b": FailbackStrategy.RECREATE}
    assert choose_strategies(STATUSES, TOPICS, ENDS, AllowedStrategies())["a"] is FailbackStrategy.RECREATE


@pytest.mark.parametrize("everywhere", [FailbackStrategy.NONE, FailbackStrategy.OFFLINE, FailbackStrategy.REPLICA])
def test_what_is_said_for_all_topics_is_not_meant_for_heartbeats(everywhere: FailbackStrategy) -> None:
    """Each unplanned failover leaves a tail of them, and logs as short as theirs cannot be cut by a replica."""
    beats = Partition(get_heartbeat_topic(MirrorName("m")), 0)
    statuses, topics = {beats: stopped(beats, 10)}, {beats.topic: ClusterTopic(id=OLD, partitions=1)}
    allowed, ends = AllowedStrategies(everywhere), {beats: Offset(12)}
    assert choose_strategies(statuses, topics, ends, allowed) == {beats.topic: FailbackStrategy.RECREATE}
    assert list(explain_objections(statuses, topics, logs(ends), allowed, FACTS)) == []
    by_name = AllowedStrategies(None, {beats.topic: FailbackStrategy.OFFLINE})
    assert choose_strategies(statuses, topics, ends, by_name) == {beats.topic: FailbackStrategy.OFFLINE}


def test_a_difference_below_the_last_mirrored_offset_is_where_the_tail_begins() -> None:
    statuses = {**STATUSES, B0: replace(STATUSES[B0], differs_at=Offset(2))}
    assert find_divergent_tails(statuses, TOPICS, ENDS) == {A1: (20, 23), B0: (2, 5)}
    assert choose_strategies(statuses, TOPICS, ENDS, AllowedStrategies())["b"] is FailbackStrategy.RECREATE


def test_of_a_topic_that_was_created_anew_nothing_can_stay() -> None:
    topics = {**TOPICS, "b": ClusterTopic(id="f" * 32, partitions=1)}
    assert (
        choose_strategies(STATUSES, topics, ENDS, AllowedStrategies(FailbackStrategy.OFFLINE))["b"]
        is FailbackStrategy.RECREATE
    )
    assert "b on east was created anew" in said(AllowedStrategies(FailbackStrategy.OFFLINE), topics=topics)
    assert said(AllowedStrategies(FailbackStrategy.OFFLINE, {"b": FailbackStrategy.RECREATE}), topics=topics) == ""


@pytest.mark.parametrize("strategy", [FailbackStrategy.OFFLINE, FailbackStrategy.REPLICA])
def test_a_log_that_begins_behind_the_truncation_point_cannot_be_cut(strategy: FailbackStrategy) -> None:
    assert said(AllowedStrategies(strategy), start=19) == ""
    assert "the log of a-1 on east begins at or behind" in said(AllowedStrategies(strategy), start=20)
    assert said(AllowedStrategies(strategy, {"a": FailbackStrategy.RECREATE}), start=21) == ""


def test_a_tail_of_a_compacted_topic_cannot_be_cut_off() -> None:
    facts = replace(FACTS, compacted=frozenset({"a", "b"}))

    def compacted(allowed: AllowedStrategies) -> str:
        return "\n".join(map(str, explain_objections(STATUSES, TOPICS, logs(), allowed, facts)))

    assert "a on east: compaction may have taken records" in compacted(AllowedStrategies(FailbackStrategy.OFFLINE))
    assert compacted(AllowedStrategies(FailbackStrategy.REPLICA, {"a": FailbackStrategy.RECREATE})) == ""
    assert compacted(AllowedStrategies()) == ""


def test_an_unknown_topic_is_a_bad_request_that_lists_the_known_ones() -> None:
    allowed = AllowedStrategies(None, {"c": FailbackStrategy.RECREATE, "a": FailbackStrategy.NONE})
    allowed.check_topics({"a", "b", "c"}, "m")
    with pytest.raises(BadRequest, match=r"unknown topic 'c': .* a, b$"):
        allowed.check_topics({"a", "b"}, "m")
    with pytest.raises(BadRequest, match=r"unknown topic 'a': .* none$"):
        allowed.check_topics(set(), "m")


def test_each_way_is_costed_for_each_divergent_topic() -> None:
    old = {A0: LogExtent(Offset(0), Offset(10), 1000), A1: LogExtent(Offset(0), Offset(23), 2300)}
    new = {
        A0: LogExtent(Offset(0), Offset(20), 2000),
        A1: LogExtent(Offset(10), Offset(30), 2000),
        B0: LogExtent(Offset(0), Offset(5)),
    }
    found = dict(
        estimate_costs(STATUSES, old, new, {"a": 3}, choose_strategies(STATUSES, TOPICS, ENDS, AllowedStrategies()))
    )
    # Half of the one log, and as much of the other, whose start has moved.
    assert found[FigureKey.LINK_BYTES] == {
        "a by recreate": 4_000,
        "a by handover": 2_000,
        "a by replica": 2_000,
        "a by offline": 2_000,
    }
    assert found[FigureKey.DISK_BYTES] == {
        "a by recreate": 12_000,
        "a by handover": 12_600,
        "a by replica": 15_900,
        "a by offline": 12_600,
    }
    assert found[FigureKey.STRATEGY_RISKS] == {way: way for way in ("recreate", "handover", "replica", "offline")}


def test_one_broker_is_offered_no_strategy_that_takes_two() -> None:
    statuses = {**STATUSES, B0: replace(STATUSES[B0], differs_at=Offset(2))}
    new = {B0: LogExtent(Offset(0), Offset(5))}
    found = dict(estimate_costs(statuses, {}, new, {}, {"b": FailbackStrategy.RECREATE}, broker_count=1))
    assert found[FigureKey.LINK_BYTES] == dict.fromkeys(("b by recreate", "b by offline"))
    assert found[FigureKey.STRATEGY_RISKS] == {way: way for way in ("recreate", "offline")}

    def objections(broker_count: int | None, allowed: AllowedStrategies) -> str:
        return "\n".join(
            map(str, explain_objections(STATUSES, TOPICS, logs(), allowed, replace(FACTS, broker_count=broker_count)))
        )

    replica = AllowedStrategies(FailbackStrategy.REPLICA)
    assert str(Finding("strategy_replica_impossible", "east", topics=["a"])) in objections(1, replica)
    assert objections(1, AllowedStrategies(FailbackStrategy.OFFLINE)) == ""
    assert objections(2, replica) == objections(None, replica) == ""


def test_a_cost_that_is_not_known_is_called_so() -> None:
    statuses = {**STATUSES, B0: replace(STATUSES[B0], differs_at=Offset(2))}
    new = {B0: LogExtent(Offset(0), Offset(5))}
    found = dict(estimate_costs(statuses, {}, new, {}, {"b": FailbackStrategy.RECREATE}))
    assert found[FigureKey.LINK_BYTES] == dict.fromkeys(
        f"b by {way}" for way in ("recreate", "handover", "replica", "offline")
    )
    assert found[FigureKey.DISK_BYTES] == dict.fromkeys(
        f"b by {way}" for way in ("recreate", "handover", "replica", "offline")
    )


def test_only_topics_that_came_as_a_whole_or_in_part_come_home() -> None:
    statuses = {**STATUSES, A1: replace(STATUSES[A1], destination_topic_id=""), B0: replace(STATUSES[B0], lmo=None)}
    assert select_created(statuses) == statuses
    statuses[B0] = replace(statuses[B0], destination_topic_id="")
    assert select_created(statuses).keys() == {A0, A1}


# -- what no plan of the mirror has recorded ---------------------------------------------------------------------------

A2, A3 = Partition("a", 2), Partition("a", 3)
WIDE = {**TOPICS, "a": ClusterTopic(id=OLD, partitions=4)}
SAME = {A0: Offset(10), A1: Offset(20), B0: Offset(5)}


def refusals(allowed: AllowedStrategies, ends: dict[Partition, Offset], new_topics: dict[str, ClusterTopic]) -> str:
    return "\n".join(
        map(str, explain_objections(STATUSES, WIDE, logs(ends), allowed, replace(FACTS, new_topics=new_topics)))
    )


def test_all_of_a_partition_that_was_never_recorded_is_tail() -> None:
    ends = {**SAME, A2: Offset(7), A3: Offset(0), Partition("other", 0): Offset(9)}
    assert find_divergent_tails(STATUSES, WIDE, ends) == {A2: (0, 7)}
    assert choose_strategies(STATUSES, WIDE, ends, AllowedStrategies(), WIDE) == {
        "a": FailbackStrategy.RECREATE,
        "b": FailbackStrategy.NONE,
    }
    assert "or other ones below it, in a;" in refusals(AllowedStrategies(FailbackStrategy.NONE), ends, WIDE)
    for cutting in (FailbackStrategy.OFFLINE, FailbackStrategy.REPLICA):
        never_mirrored = Finding("unmirrored_partitions_not_truncatable", "east", partitions=[A2])
        assert str(never_mirrored) in refusals(AllowedStrategies(cutting), ends, WIDE)
    assert refusals(AllowedStrategies(FailbackStrategy.RECREATE), ends, WIDE) == ""


def test_all_of_a_partition_that_never_had_a_copy_is_tail() -> None:
    without = replace(STATUSES[A1], destination_topic_id="", lmo=Offset(20))
    assert find_divergent_tails({**STATUSES, A1: without}, TOPICS, ENDS) == {A1: (0, 23)}


def test_a_topic_with_more_partitions_than_on_the_new_primary_can_only_be_made_anew() -> None:
    """Also where nothing was written to them: keys would go to other partitions at home."""
    ends = {**SAME, A2: Offset(0), A3: Offset(0)}
    assert choose_strategies(STATUSES, WIDE, ends, AllowedStrategies(), TOPICS)["a"] is FailbackStrategy.RECREATE
    assert refusals(AllowedStrategies(), ends, TOPICS) == ""
    for kept in (FailbackStrategy.NONE, FailbackStrategy.OFFLINE, FailbackStrategy.REPLICA):
        narrower = Finding("topic_narrower", "a", strategy=kept, old_count=4, new_count=2, source="east")
        assert str(narrower) in refusals(AllowedStrategies(kept), ends, TOPICS)
    assert choose_strategies(STATUSES, TOPICS, SAME, AllowedStrategies(), WIDE)["a"] is FailbackStrategy.NONE, (
        "the way home adds the others"
    )


# -- what is chosen where nobody names a strategy ----------------------------------------------------------------------

GRANTED = replace(
    FACTS,
    broker_count=3,
    cluster_rights=frozenset(Operation),
    topic_rights={topic: frozenset(Operation) for topic in TOPICS},
)
RECREATE, HANDOVER = FailbackStrategy.RECREATE, FailbackStrategy.HANDOVER
LARGE_LOGS = {p: LogExtent(Offset(0), end, 64 << 20) for p, end in ENDS.items()}


def choose(
    facts: StrategyFacts = GRANTED,
    logs: dict[Partition, LogExtent] = LARGE_LOGS,
    allowed: AllowedStrategies | None = None,
    topics: dict[str, ClusterTopic] = TOPICS,
) -> tuple[FailbackStrategy, str | None]:
    """What topic `a` gets, and what stands against a handover."""
    obstacles = find_obstacles(STATUSES, topics, logs, facts)
    ends = {p: log.end for p, log in logs.items()}
    chosen = choose_strategies(STATUSES, topics, ends, allowed or AllowedStrategies(), facts.new_topics, obstacles)
    assert chosen["b"] is FailbackStrategy.NONE
    return chosen["a"], obstacles.get(("a", HANDOVER))


def test_the_strategy_with_the_fewest_bytes_over_the_link_that_needs_nobody_is_chosen() -> None:
    assert choose() == (HANDOVER, None)
    assert choose(allowed=AllowedStrategies(RECREATE)) == (RECREATE, None)
    for by_hand in (FailbackStrategy.OFFLINE, FailbackStrategy.REPLICA):
        assert choose(allowed=AllowedStrategies(by_hand))[0] is by_hand


@pytest.mark.parametrize(
    ("facts", "obstacle"),
    [
        (replace(GRANTED, compacted=frozenset({"a"})), "compacted_topics_not_truncatable"),
        (replace(GRANTED, tiered=frozenset({"a"})), "tiered_topics_not_truncatable"),
        (replace(GRANTED, broker_count=1), "strategy_replica_impossible"),
        (replace(GRANTED, cluster_rights=None), "failback_rights_lacking"),
        (
            replace(GRANTED, cluster_rights=frozenset(Operation) - {Operation.CLUSTER_ACTION}),
            "failback_rights_lacking",
        ),
        (replace(GRANTED, topic_rights={}), None),
        (replace(GRANTED, topic_rights={"a": frozenset({Operation.CREATE})}), "failback_rights_lacking"),
        (
            replace(GRANTED, new_topics={**TOPICS, "a": ClusterTopic(id=OLD, partitions=1)}),
            "topic_narrower",
        ),
    ],
)
def test_a_topic_is_made_anew_where_no_other_strategy_does_without_people(
    facts: StrategyFacts, obstacle: str | None
) -> None:
    assert choose(facts) == (HANDOVER if obstacle is None else RECREATE, obstacle)


def test_a_log_of_which_too_little_could_stay_is_not_handed_over() -> None:
    wanted = MIN_KEPT_BYTES[HANDOVER]
    for size, obstacle in ((wanted, "log_too_short"), (2 * wanted, None), (None, "log_size_unknown")):
        logs = {**LARGE_LOGS, A1: LogExtent(Offset(0), ENDS[A1], size)}
        assert choose(logs=logs) == (HANDOVER if obstacle is None else RECREATE, obstacle)
    assert choose(logs={**LARGE_LOGS, A0: LogExtent(Offset(0), ENDS[A0], 1)}) == (HANDOVER, None), "it has no tail"


def test_the_plan_says_why_a_strategy_is_chosen_and_others_are_not() -> None:
    obstacles = find_obstacles(STATUSES, TOPICS, LARGE_LOGS, replace(GRANTED, compacted=frozenset({"a"})))
    figures = dict(list_choice_figures({"a": RECREATE, "b": FailbackStrategy.NONE}, AllowedStrategies(), obstacles))
    assert figures == {
        FigureKey.STRATEGY_REASONS: {"a": "only"},
        FigureKey.STRATEGY_OBSTACLES: {
            f"a by {way}": "compacted_topics_not_truncatable" for way in ("handover", "replica", "offline")
        },
    }
    chosen = {"a": HANDOVER}
    assert dict(list_choice_figures(chosen, AllowedStrategies(), {})) == {FigureKey.STRATEGY_REASONS: {"a": "cheapest"}}
    assert dict(list_choice_figures(chosen, AllowedStrategies(HANDOVER), {})) == {
        FigureKey.STRATEGY_REASONS: {"a": "named"}
    }
    assert dict(list_choice_figures({"a": FailbackStrategy.NONE}, AllowedStrategies(), {})) == {}
