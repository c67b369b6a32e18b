"""What steps leave for each other: whole after a crash, and never taken for granted."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.errors import Indeterminate
from mirror_core.model.names import Offset, Partition, PartitionOffsets
from mirror_core.runbook.step_records import (
    STEP_OUTPUTS,
    FenceResult,
    GateResult,
    ProveResult,
    RecreatedTopic,
    RecreatedTopics,
    read_all_outputs,
    read_output,
)
from mirror_core.state.journal import Journal
from tests.support.memory_state import journal_of

OFFSETS = st.dictionaries(
    st.builds(Partition, st.sampled_from(["a", "a-1", "b.c", "é"]), st.integers(0, 99)),
    st.integers(0, 2**63 - 1).map(Offset),
)


@pytest.fixture
def journal() -> Journal:
    return journal_of("m-failover-20260101T000000-abcd", "prove", "fence", "parity")


@given(OFFSETS)
def test_offsets_come_back_as_they_went_in_whatever_their_order(offsets: dict[Partition, Offset]) -> None:
    assert PartitionOffsets.from_mapping(offsets).to_mapping() == offsets
    assert PartitionOffsets.from_mapping(dict(reversed(offsets.items()))) == PartitionOffsets.from_mapping(offsets)


def test_what_a_step_left_is_read_back_as_its_type(journal: Journal) -> None:
    proven = ProveResult(ends=PartitionOffsets.from_mapping({Partition("a", 0): Offset(7)}), records=5)
    journal.save_checkpoint("prove", proven)
    assert read_output(journal, "prove", ProveResult) == proven
    (shown,) = read_all_outputs(journal)["prove"].values()
    assert msgspec.json.decode(msgspec.json.encode(shown), type=ProveResult) == proven


def test_what_is_missing_is_not_taken_for_empty(journal: Journal) -> None:
    with pytest.raises(Indeterminate, match="what step prove kept \\(ProveResult\\)"):
        read_output(journal, "prove", ProveResult)
    journal.save_checkpoint("parity", GateResult(ends=PartitionOffsets()))
    with pytest.raises(Indeterminate, match="FenceResult"):
        read_output(journal, "parity", FenceResult)


def test_settings_hold_whatever_a_value_may_hold(journal: Journal) -> None:
    topics = RecreatedTopics(
        topics=(RecreatedTopic(name="a", id="1" * 32, replication_factor=1, settings={"cleanup.policy": "a=b, c=d\n"}),)
    )
    journal.save_checkpoint("align", topics)
    assert journal.load_checkpoint("align", RecreatedTopics) == topics


def test_each_type_has_a_version_and_a_name_of_its_own() -> None:
    kinds = [kind for _, kind in STEP_OUTPUTS]
    assert len({kind.__name__ for kind in kinds}) == len(kinds)
    assert all(kind.VERSION >= 1 for kind in kinds)
