"""What waits to be committed on the destination, and when it is due."""

from __future__ import annotations

from mirror_core.decide.group_coverage import LogBounds
from mirror_core.kafka.consumer_groups import CommittedOffset
from mirror_core.model.names import Offset, Partition
from mirror_core.sync.offset_commits import FollowedTopic, PendingOffsetCommits

P, Q = Partition("t", 0), Partition("t", 1)
LOGS = {P: LogBounds(Offset(0), Offset(10)), Q: LogBounds(Offset(0), Offset(5))}


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(Offset(offset), -1, "")


def test_the_newest_word_counts_and_what_is_over_is_gone() -> None:
    waiting = PendingOffsetCommits()
    waiting.set_committed("g", P, at(3))
    waiting.set_committed("g", P, at(4))
    waiting.set_committed("g", Q, at(1))
    assert waiting.list_due(LOGS, 0.0) == {"g": {P: at(4), Q: at(1)}}
    assert waiting.partitions == {P, Q}
    waiting.discard("g", P)
    waiting.set_committed("g", Q, None)
    waiting.discard("g", Q)
    assert waiting.list_due(LOGS, 0.0) == {}
    assert waiting.committed == {}


def test_a_commit_is_forgotten_with_the_topic_that_it_is_of() -> None:
    """Another topic of the same name would get it as soon as it is as long."""
    waiting, other = PendingOffsetCommits(), Partition("other", 0)
    ids = {"t": FollowedTopic("s1", "d1"), "other": FollowedTopic("s2", "d2")}
    assert waiting.set_topics(ids) == {"t", "other"}
    for changed in (FollowedTopic("s3", "d1"), FollowedTopic("s3", "d3"), None):
        for partition in (P, other):
            waiting.set_committed("g", partition, at(20))
        ids = {"other": ids["other"]} if changed is None else {**ids, "t": changed}
        assert waiting.set_topics(ids) == (frozenset() if changed is None else {"t"})
        assert waiting.partitions == {other}
    assert waiting.set_topics({**ids, "t": FollowedTopic("s3", "d3")}) == {"t"}, "what it has committed is to be read"


def test_what_the_copy_has_not_reached_waits_and_is_due_as_soon_as_it_has() -> None:
    waiting = PendingOffsetCommits()
    waiting.set_committed("g", P, at(20))
    assert waiting.list_due(LOGS, 0.0), "the copy's end is better than nothing"
    waiting.postpone("g", P, until=5.0)
    assert waiting.list_due(LOGS, 4.9) == {}
    assert waiting.list_due({P: LogBounds(Offset(0), Offset(20))}, 4.9) == {"g": {P: at(20)}}
    assert waiting.list_due(LOGS, 5.0) == {"g": {P: at(20)}}


def test_a_group_that_goes_on_is_not_put_off() -> None:
    waiting = PendingOffsetCommits()
    waiting.set_committed("g", P, at(20))
    waiting.postpone("g", P, until=5.0)
    waiting.set_committed("g", P, at(21))
    assert waiting.list_due(LOGS, 1.0) == {"g": {P: at(21)}}


def test_a_group_with_members_there_is_left_alone_for_a_while() -> None:
    waiting = PendingOffsetCommits()
    waiting.set_committed("g", P, at(3))
    waiting.set_committed("h", P, at(3))
    waiting.mark_active("g", until=5.0)
    assert waiting.list_due(LOGS, 4.9) == {"h": {P: at(3)}}
    assert set(waiting.list_due(LOGS, 5.0)) == {"g", "h"}


def test_partitions_whose_log_is_not_known_now_wait() -> None:
    waiting = PendingOffsetCommits()
    waiting.set_committed("g", P, at(3))
    assert waiting.list_due({}, 0.0) == {}
    assert waiting.list_due(LOGS, 0.0) == {"g": {P: at(3)}}
