"""Which of a new topic's settings a cluster accepts: found by trials, and what a copy must not go without."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from mirror_core.decide.topic_settings import (
    BATCH_MARGIN_BYTES,
    MIRROR_HELD_KEYS,
    AcceptedSettings,
    build_wanted_configs,
    find_harmful_refusals,
    search_accepted,
)

SOURCE = {"segment.bytes": "100000", "flush.ms": "7", "index.interval.bytes": "512", "segment.ms": "9"}
WANTED = build_wanted_configs(SOURCE, {**SOURCE, "max.message.bytes": "5000000"}, 3)
Accepts = Callable[[Mapping[str, str]], str | None]


def searched(wanted: Mapping[str, str], accepts: Accepts) -> tuple[AcceptedSettings | None, int]:
    search, trials = search_accepted(wanted), 0
    trial = next(search)
    while True:
        trials += 1
        try:
            trial = search.send(accepts(trial))
        except StopIteration as end:
            found: AcceptedSettings | None = end.value
            return found, trials


def refusing(*keys: str) -> Accepts:
    return lambda trial: ", ".join(key for key in keys if key in trial) or None


@given(bad=st.sets(st.sampled_from(sorted(WANTED))))
def test_whatever_is_refused_is_found_and_all_others_stay(bad: set[str]) -> None:
    found, trials = searched(WANTED, refusing(*bad))
    assert found is not None
    assert found.configs == {key: value for key, value in WANTED.items() if key not in bad}
    assert found.refused.keys() == bad
    assert trials <= len(WANTED) + 3


def test_a_topic_that_is_refused_for_another_reason_is_not_searched_further() -> None:
    assert searched(WANTED, lambda trial: "the name") == (None, 2)


def test_a_policy_that_demands_a_setting_is_met_by_those_that_the_mirror_needs() -> None:
    def accepts(trial: Mapping[str, str]) -> str | None:
        return "no min.insync.replicas" if "min.insync.replicas" not in trial else refusing("flush.ms")(trial)

    found, _ = searched(WANTED, accepts)
    assert found is not None
    assert found.refused == {"flush.ms": "flush.ms"}


def test_a_limit_for_batches_below_ours_is_set_to_the_sources_and_nothing_is_called_left_out() -> None:
    def accepts(trial: Mapping[str, str]) -> str | None:
        return "too large" if int(trial.get("max.message.bytes", 0)) > 5_000_000 else None

    found, _ = searched(WANTED, accepts)
    assert found is not None
    assert int(found.configs["max.message.bytes"]) == int(WANTED["max.message.bytes"]) - BATCH_MARGIN_BYTES
    assert found.refused == {}


def test_a_copy_does_without_settings_by_which_no_record_is_lost_unseen() -> None:
    default = {
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": "3600000",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "2",
        "max.message.bytes": "1048588",
    }
    refused = dict.fromkeys([*MIRROR_HELD_KEYS & WANTED.keys(), "segment.bytes"], "no")
    assert find_harmful_refusals(WANTED, refused, default) == {"retention.ms": "604800000"}
    assert find_harmful_refusals(WANTED, {"min.insync.replicas": "no"}, {**default, "min.insync.replicas": "1"}) == {
        "min.insync.replicas": "1"
    }
    assert find_harmful_refusals(WANTED, {"cleanup.policy": "no"}, {}) == {"cleanup.policy": "unknown"}
