"""Digests of comparisons: two inputs that were written for one digest of XXH3 differ."""

from __future__ import annotations

import random

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from mirror_core.model.names import Partition
from mirror_core.model.parity_verdict import SalvageMatch
from mirror_core.parity.keyed_digest import DigestKey, KeyedDigest
from mirror_core.parity.record_differences import compare_records
from mirror_core.parity.salvage import find_tail_records
from mirror_core.wire.records import Record
from tests.support.colliding_records import colliding_values, values_that_often_collide


def digest(key: DigestKey, *parts: bytes) -> str:
    found = KeyedDigest(key)
    for part in parts:
        found.update(part)
    return found.hexdigest()


@given(one=st.binary(max_size=100), other=st.binary(max_size=100))
def test_one_key_gives_equal_digests_for_equal_bytes_only(one: bytes, other: bytes) -> None:
    key = DigestKey.generate()
    assert (digest(key, one) == digest(key, other)) == (one == other)
    assert digest(key, one, other) == digest(key, one + other)


def test_a_digest_can_be_asked_for_twice() -> None:
    found = KeyedDigest(DigestKey.generate())
    found.update(b"some bytes")
    assert found.hexdigest() == found.hexdigest() != digest(DigestKey.generate(), b"some bytes")


def test_values_crafted_for_the_public_secret_differ() -> None:
    one, other = colliding_values(0)
    assert one != other
    assert xxhash.xxh3_128_digest(one) == xxhash.xxh3_128_digest(other)
    key = DigestKey.generate()
    assert digest(key, one) != digest(key, other)


def test_a_random_seed_for_xxh3_would_not_be_enough() -> None:
    one, other = values_that_often_collide()
    seed = random.Random(1)
    seeds = [seed.getrandbits(64) for _ in range(10_000)]
    equal = sum(xxhash.xxh3_128_digest(one, seed=s) == xxhash.xxh3_128_digest(other, seed=s) for s in seeds)
    assert equal > 5
    keys = (DigestKey.generate() for _ in range(1_000))
    assert all(digest(key, one) != digest(key, other) for key in keys)


def test_records_crafted_for_one_digest_are_altered_and_conflicting() -> None:
    one, other = (Record(0, 0, b"k", value, ()) for value in colliding_values(0))
    found = compare_records(Partition("orders", 0), iter([one]), iter([other]))
    assert found.src_digest != found.dst_digest
    assert find_tail_records([one], [other]).find_match(one) is SalvageMatch.CONFLICTING
    keys = [record._replace(key=record.value, value=b"") for record in (one, other)]
    assert find_tail_records(keys[:1], keys[1:]).find_match(keys[0]) is SalvageMatch.MISSING
