"""What the driver remembers of its source, and when its heart holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror_core.dataplane.heart import Heart, fencing
from mirror_core.dataplane.lookout import MOST_TRANSACTIONS, Key, Memory
from mirror_core.kafka.config import ClusterConfig, Config
from mirror_core.model.mirror import Desired, Mirror
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from mirror_core.model.run import Mode, Plan, RunKind, RunState, StepRecord, StepState
from mirror_core.model.sighting import OVER, Seen, TransactionPart, TransactionSeen
from mirror_core.state.link import Link
from mirror_core.state.records import State
from tests.memory import run_of
from tests.unit.test_decide_loss import status

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)
M = MirrorName("m")
RUN = "m-failover-20261122T090000-a1b2"


def offsets(**named: int) -> dict[Partition, Offset]:
    return {Partition(name[0], int(name[1:])): Offset(value) for name, value in named.items()}


@pytest.fixture
def memory() -> Memory:
    return Memory(M, {})


# -- the lookout ---------------------------------------------------------------------------------------------------


def test_what_cannot_be_seen_now_stays_as_it_was_and_grows_old(memory: Memory) -> None:
    memory.ends(1_000, offsets(a0=10, a1=20, b0=5), [])
    memory.ends(3_000, offsets(a0=12), [A1])
    found = memory.sighting()
    assert found.at_ms == 3_000
    assert dict(found.seen()) == {
        A0: Seen(Offset(12), 3_000),
        A1: Seen(Offset(20), 1_000),
        B0: Seen(Offset(5), 1_000),
    }
    assert set(found.leaderless()) == {A1}
    memory.keep({A0: status(A0)})
    memory.forget_others()
    memory.ends(4_000, offsets(a0=12), [])
    assert dict(memory.sighting().seen()) == {A0: Seen(Offset(12), 4_000)}


def test_a_partition_that_nobody_ever_led_is_told_without_an_end(memory: Memory) -> None:
    memory.ends(1_000, offsets(a0=10), [A1])
    found = memory.sighting()
    assert set(dict(found.seen())) == {A0}
    assert set(found.leaderless()) == {A1}


def key(name: str = "tx", started_ms: int = 100) -> Key:
    return name, 7, started_ms


def opened(firsts: Mapping[Partition, int | None], state: str = "Ongoing") -> TransactionSeen:
    parts = tuple(
        TransactionPart(partition=p, first=None if f is None else Offset(f)) for p, f in sorted(firsts.items())
    )
    return TransactionSeen(id="tx", producer_id=7, state=state, parts=parts)


def told(memory: Memory) -> list[tuple[str, list[tuple[int | None, int | None]]]]:
    return [(t.state, [(part.first, part.upto) for part in t.parts]) for t in memory.sighting().transactions]


def test_a_transaction_is_remembered_after_its_end_until_all_of_it_is_copied(memory: Memory) -> None:
    memory.open(1_000, {key(): opened({A0: 3, A1: None})})
    memory.bound(offsets(a0=9, a1=9))
    assert told(memory) == [("Ongoing", [(3, None), (None, None)])], "an open one has no bound"
    memory.open(2_000, {key(): opened({A1: 5}, "PrepareCommit")})
    assert told(memory) == [("PrepareCommit", [(3, None), (5, None)])], "a-0 has its marker, and is told no more"
    memory.open(2_500, {key(): opened({A1: None}, "PrepareCommit")})
    assert told(memory) == [("PrepareCommit", [(3, None), (5, None)])], "what was known stays known"
    memory.open(3_000, {})
    memory.bound(offsets(a0=10))
    assert told(memory) == [(OVER, [(3, 10), (5, None)])], "nobody led a-1"
    memory.open(4_000, {})
    memory.bound(offsets(a0=14, a1=11))
    assert told(memory) == [(OVER, [(3, 10), (5, 11)])], "what came since is not its"
    assert memory.over() == {A0, A1}
    memory.copied(offsets(a0=10, a1=10))
    assert len(told(memory)) == 1
    memory.copied(offsets(a0=10, a1=11))
    assert told(memory) == []


def test_the_next_transaction_of_an_id_is_another_one(memory: Memory) -> None:
    memory.open(1_000, {key(started_ms=100): opened({A0: 3})})
    memory.open(2_000, {key(started_ms=200): opened({A0: 8})})
    memory.bound(offsets(a0=9))
    assert told(memory) == [(OVER, [(3, 9)]), ("Ongoing", [(8, None)])]


def test_of_many_transactions_the_newest_are_named_and_the_others_counted(memory: Memory) -> None:
    memory.open(1_000, {key(started_ms=n): opened({A0: n}) for n in range(MOST_TRANSACTIONS + 5)})
    found = memory.sighting()
    assert len(found.transactions) == MOST_TRANSACTIONS
    assert found.unnamed == 5
    assert found.transactions[-1].parts[0].first == MOST_TRANSACTIONS + 4


# -- the heart -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "run"),
    [
        (f"step/{RUN}/fence", RUN),
        (f"step/{RUN}/drain", RUN),
        (f"step/{RUN}/settle", RUN),
        (f"step/{RUN}/prove", None),
        (f"run/{RUN}", None),
        ("step/n-failover-20261122T090000-a1b2/fence", None),
        ("lease/m", None),
        ("step/", None),
    ],
)
def test_steps_behind_which_nobody_may_write_are_known_by_their_keys(written: str, run: str | None) -> None:
    assert fencing(written, M) == run


@pytest.fixture
def heart(tmp_path: Path) -> Heart:
    sides = {name: ClusterConfig(ClusterName(name), {}, {}) for name in ("east", "west")}
    mirror = Mirror(
        name=M,
        source=ClusterName("east"),
        destination=ClusterName("west"),
        source_id="E",
        destination_id="W",
        topics=("a",),
        producer_id=1 << 62,
        desired=Desired.STARTED,
        created_ms=1,
    )
    config = Config(tmp_path / "mirrorbook.yaml", {})
    return Heart(Link(config, mirror, sides["east"], sides["west"]), "driver", lambda line: None)


def state(*steps: str, ended: bool = False) -> State:
    made = State()
    run = run_of(RUN, Plan(kind=RunKind.FAILOVER, mirror=M, mode=Mode.PLANNED, steps=(), bound=()))
    made.put(replace(run, state=RunState.ABORTED, ended_ms=9) if ended else run)
    for step in steps:
        made.put(StepRecord(run=RUN, step=step, state=StepState.STARTED, attempt=1, started_ms=1))
    return made


def test_the_heart_holds_from_the_fence_on_until_the_run_has_ended(heart: Heart) -> None:
    heart.judge(state("prove"))
    assert heart.held_by is None
    heart.judge(state("prove", "fence"))
    assert heart.held_by == RUN
    heart.judge(state("prove"))
    assert heart.held_by == RUN, "an older look at the state topic lets nothing go"
    heart.judge(state("prove", "fence", ended=True))
    assert heart.held_by is None
