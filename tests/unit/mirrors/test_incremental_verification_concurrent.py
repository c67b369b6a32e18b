"""Two comparisons of one mirror at the same time: neither takes away what the other has found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from mirror_core.mirrors import incremental_verification
from mirror_core.mirrors.incremental_verification import ProofStore
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity_verdict import KnownDifference, MirrorVerification, VerifiedEnd
from mirror_core.state.state_records import State
from tests.support.cluster_names import LINK

NAME, A0, A1, B0 = LINK.mirror.name, Partition("a", 0), Partition("a", 1), Partition("b", 0)
IDS = {"a": "1" * 32, "b": "2" * 32}


def row(end: int, at_ms: int = 1) -> VerifiedEnd:
    return VerifiedEnd(end, 5, at_ms, end)


def place(partition: Partition, offset: int, at_ms: int = 7) -> KnownDifference:
    topic = partition.topic
    return KnownDifference(
        topic=topic, index=partition.index, id=IDS[topic], offset=Offset(offset), kind="value", at_ms=at_ms
    )


def proof(*differs: KnownDifference, ids: dict[str, str] = IDS, **ends: int) -> MirrorVerification:
    rows = {Partition(name[0], int(name[1])): row(end) for name, end in ends.items()}
    return MirrorVerification.from_partitions(NAME, rows, ids, differs)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> State:
    """The state topic, as whoever has the control id reads and writes it."""
    state = State()

    @contextmanager
    def door(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(state=state, put=state.put)

    monkeypatch.setattr(incremental_verification, "take_control", door)
    return state


@pytest.mark.parametrize(
    "found",
    [
        proof(place(A0, 500), a0=500, b0=9),
        proof(place(A0, 0), b0=9),  # at the first offset nothing of the partition stays proved
    ],
)
def test_what_another_comparison_has_found_stays_and_is_not_proved_over(
    stored: State, found: MirrorVerification
) -> None:
    before = proof(a0=1_000, b0=9)
    stored.put(before)
    background, whole = ProofStore(LINK, before), ProofStore(LINK, before)
    whole.save_proof(found)
    background.save_proof(proof(a0=1_100, b0=9))
    assert stored.verifications[NAME] == found
    background.save_proof(proof(a0=1_200, b0=12))  # it goes by what it began with, for hours perhaps
    rows = {p: one for p, _, one in found.iterate_partitions()} | {B0: row(12)}
    assert stored.verifications[NAME] == MirrorVerification.from_partitions(NAME, rows, IDS, found.differences)


def test_what_another_comparison_has_seen_to_be_equal_does_not_come_back(stored: State) -> None:
    before = proof(place(A0, 500), a0=500)
    stored.put(before)
    background, whole = ProofStore(LINK, before), ProofStore(LINK, before)
    whole.save_proof(proof(a0=1_000))
    background.save_proof(proof(place(A0, 500), a0=500, b0=9))
    assert stored.verifications[NAME].differences == ()
    background.save_proof(proof(place(A0, 500), a0=500, b0=10))
    assert stored.verifications[NAME].differences == ()
    background.save_proof(proof(place(A0, 500, at_ms=9), a0=500, b0=10))
    assert stored.verifications[NAME].differences == (place(A0, 500, at_ms=9),), (
        "it was read here, and nobody knows who read last"
    )


def test_what_one_has_seen_to_be_equal_is_not_known_from_before(stored: State) -> None:
    before = proof(place(A0, 500), a0=500)
    stored.put(before)
    ProofStore(LINK, before).save_proof(proof(a0=1_000))
    assert stored.verifications[NAME] == proof(a0=1_000)


def test_what_another_one_found_again_stays_though_this_one_saw_it_equal(stored: State) -> None:
    before = proof(place(A0, 500), a0=500)
    stored.put(before)
    background, whole = ProofStore(LINK, before), ProofStore(LINK, before)
    whole.save_proof(proof(place(A0, 500, at_ms=9), a0=500))
    background.save_proof(proof(a0=1_000))
    assert stored.verifications[NAME] == proof(place(A0, 500, at_ms=9), a0=500), "the next comparison begins there"


@pytest.mark.parametrize(("mine", "first"), [(400, 400), (500, 500), (600, 500)])
def test_of_two_places_in_a_partition_the_first_one_is_known(stored: State, mine: int, first: int) -> None:
    before = proof(a0=300)
    stored.put(before)
    background, whole = ProofStore(LINK, before), ProofStore(LINK, before)
    whole.save_proof(proof(place(A0, 500), a0=500))
    background.save_proof(proof(place(A0, mine, at_ms=8), a0=mine))
    at_ms = 7 if first < mine else 8
    assert stored.verifications[NAME] == proof(place(A0, first, at_ms), a0=first)


def test_what_another_comparison_has_proved_beside_stays_proved(stored: State) -> None:
    before = proof(a0=300)
    stored.put(before)
    background, whole = ProofStore(LINK, before), ProofStore(LINK, before)
    whole.save_proof(proof(a0=300, b0=40))
    background.save_proof(proof(a0=310))
    background.save_proof(proof(a0=320))
    assert stored.verifications[NAME] == proof(a0=320, b0=40)
    background.save_proof(proof(place(B0, 0), a0=320))
    assert stored.verifications[NAME] == proof(place(B0, 0), a0=320)


def test_a_topic_that_was_made_anew_does_not_take_the_proof_of_the_one_before(stored: State) -> None:
    stored.put(before := proof(a0=300))
    background, whole = ProofStore(LINK, before), ProofStore(LINK, before)
    whole.save_proof(proof(a0=300, a1=40))
    background.save_proof(proof(ids={"a": "3" * 32}, a0=20))
    assert stored.verifications[NAME] == proof(ids={"a": "3" * 32}, a0=20)


def test_what_others_have_taken_out_is_not_put_back(stored: State) -> None:
    """A partition had FAILED, or was copied anew."""
    before = proof(place(B0, 4), a0=300, a1=300, b0=4)
    stored.put(before)
    memory = ProofStore(LINK, before)
    stored.put(before.forget_partitions({A0, B0}))
    for end in (310, 320):
        memory.save_proof(proof(place(B0, 4), a0=end, a1=end, b0=4))
        assert stored.verifications[NAME] == proof(a1=end)
