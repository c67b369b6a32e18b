"""A plan as a file: what comes back is what was written, and nothing altered is believed."""

from __future__ import annotations

import json

import pytest

from mirror_core.decide.parity_spans import cut_spans
from mirror_core.decide.verification import VerificationBasis
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterIdentity, ClusterName, MirrorName, Offset, Partition
from mirror_core.model.parity_verdict import KnownDifference, MirrorVerification, VerifiedEnd
from mirror_core.parity.parity_plan import PLAN_FORMAT, ParityPlan, StoredBasis, encode_plan, parse_plan
from tests.support.parity_rows import ends, partition, wanted

VERIFIED = VerifiedEnd(end=7, destination_epoch=1, at_ms=3, records=5, source_epoch=2)
PROOF = MirrorVerification.from_partitions(MirrorName("m"), {partition(0): VERIFIED}, {"orders": "id"})
BASIS = VerificationBasis(
    {partition(0): VERIFIED},
    {partition(0): 1, partition(1): 4},
    {"orders": "id"},
    {partition(0): 2},
    (KnownDifference(topic="orders", index=1, id="id", offset=Offset(3), kind="value", at_ms=1),),
    {partition(1): VERIFIED},
)


def plan() -> ParityPlan:
    ranges = (wanted(0, 30), wanted(1, 20))
    return ParityPlan(
        format=PLAN_FORMAT,
        mirror=MirrorName("m"),
        producer_id=1,
        source=ClusterIdentity(ClusterName("east"), "id-of-east"),
        destination=ClusterIdentity(ClusterName("west"), "id-of-west"),
        level=3,
        chunk=10,
        throttle=None,
        config_path="/etc/mirrorbook/mirrorbook.yaml",
        planned_ms=1,
        ranges=ranges,
        ends=tuple(ends(0, 3)),
        spans=cut_spans(ranges, {}, 10, 10_000),
        left_out=((partition(9), "it is FAILED"),),
        basis=StoredBasis.from_basis(BASIS, PROOF),
    )


def test_a_plan_comes_back_whole() -> None:
    read = parse_plan(encode_plan(plan()), "plan.json")
    assert read == plan()
    assert read.digest == plan().digest
    assert read.basis.to_basis() == BASIS
    assert read.basis.proof == PROOF
    assert isinstance(read.ranges[0].partition, Partition)
    assert isinstance(read.basis.valid[0][1], VerifiedEnd)


@pytest.mark.parametrize("altered", [{"level": 2}, {"spans": []}, {"producer_id": 2}, {"format": 99}], ids=str)
def test_an_altered_plan_is_refused(altered: dict[str, object]) -> None:
    document = json.loads(encode_plan(plan()))
    document["plan"] |= altered
    with pytest.raises(BadRequest, match=r"plan.json: the plan is not as it was written"):
        parse_plan(json.dumps(document).encode(), "plan.json")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff"])
def test_what_is_no_plan_is_refused(content: bytes) -> None:
    with pytest.raises(BadRequest, match=r"plan.json: this is not the plan of a comparison"):
        parse_plan(content, "plan.json")
