"""Strategy `replica`: a new replica is parked below the point and elected; others truncate.

A replica outside the ISR can be throttled (KIP-73) but not stopped: the quota window forgets after ten seconds, then
it fetches once more. So it is parked far enough below the point to leave time to stop the leader. What it lacks is
copied again. Measured on brokers of 4.3.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, describe_producers, list_offsets, replica_ends
from mirror_core.kafka.placing import await_replicas, call_off, elect_unclean, placements, reassign
from mirror_core.kafka.quorum import quorum
from mirror_core.kafka.reader import LogReader
from mirror_core.kafka.throttling import rate_of, set_rate, throttle, throttled, unthrottle
from mirror_core.model.errors import MirrorError, Refused, RemoteFault, Unreachable
from mirror_core.model.names import Offset, Partition
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.checkpoints import Throttled
from mirror_core.runbook.offline import only_one

WAIT_S = 300.0
HASTE_S = 60.0
"""At least this, if a place without an open transaction had to be found."""
FETCH: Final = 1 << 20
QUOTA_S: Final = 10.0
FASTEST: Final = 50_000_000
APPROACH_S: Final = 60.0
"""Small logs are followed slowly, to take about this long: they must not overshoot between two polls."""
LOOK_S: Final = 0.1
STALL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Marks:
    brake: Offset
    rest: Offset
    """Beyond this, less than `MIN_OPERATOR_S` is left to stop the leader."""
    last: Offset
    """Beyond this, one more fetch may pass the point."""


def cut_by_replica(
    acts: Acts, old: ClusterClient, points: Mapping[Partition, Offset], placed: Mapping[Partition, tuple[int, ...]]
) -> dict[str, str | int]:
    """Returns if no log exceeds its point. Waits for an operator. Idempotent."""
    if not points:
        return {}
    _release(acts, old)
    ends = list_offsets(old, points, Point.LOG_END)
    long = [p for p, point in points.items() if ends[p] > point]
    now = placements(old, {p.topic for p in long})
    hosts = only_one({p: now[p] for p in long})
    for leader in sorted(set(hosts.values())):
        mine = {p: points[p] for p in long if hosts[p] == leader}
        _cut(acts, old, leader, mine, {p: placed[p] for p in mine})
    _release(acts, old)  # what failed to be removed must go now
    away = sorted({node for p in points for node in placed[p]} - set(old.brokers()))
    if away:  # a dead conductor could not say so
        acts.say(f"start broker {', '.join(map(str, away))} of {old.name} again, if it was stopped for this run")
    # With min.insync.replicas above 1 a lone leader's end is not readable.
    _until(lambda: _readable(old, points), f"cluster {old.name}: {some(sorted(points))} cannot be read to the end")
    ends = list_offsets(old, points, Point.LOG_END)
    now = placements(old, {p.topic for p in points})
    back = {p: placed[p] for p in points if set(now[p].replicas) != set(placed[p])}
    if back:
        reassign(old, back)
    return {"led_by_a_short_replica": some(f"{p} at {ends[p]}, at most {point}" for p, point in points.items())}


def _cut(
    acts: Acts,
    old: ClusterClient,
    leader: int,
    points: Mapping[Partition, Offset],
    placed: Mapping[Partition, tuple[int, ...]],
) -> None:
    rate, marks = prepare(acts, old, points)
    others = [node for node in old.brokers() if node != leader]
    follower = max(others, key=lambda node: (sum(node in nodes for nodes in placed.values()), -node))
    with _throttles(acts, old, leader, follower, points) as left:
        set_rate(old, follower, str(rate))
        call_off(old, points)  # a dead conductor's reassignment
        for nodes in ((leader,), (leader, follower)):
            reassign(old, dict.fromkeys(points, nodes))
            if nodes == (leader,):
                await_replicas(old, dict.fromkeys(points, nodes))
        _approach(old, follower, marks)
        left_s = _park(acts, old, follower, marks, rate)
        acts.say(f"stop broker {leader} of {old.name} now, within {left_s:.0f} s; it will be started again in a moment")
        _until(lambda: _stopped(old, leader, follower, marks), f"broker {leader} was not stopped")
        _check(acts, old, leader, follower, points)
        acts.journal.keep("align", left)  # fenced if we lost the run: then elect nobody
        elect_unclean(old, points)
        _until(lambda: _leads(old, follower, points), f"broker {follower} was not elected")
        acts.say(f"broker {follower} leads: start broker {leader} of {old.name} again, within {WAIT_S:.0f} s")
        _until(lambda: leader in old.brokers(), f"broker {leader} was not started again: start it")


def prepare(acts: Acts, old: ClusterClient, points: Mapping[Partition, Offset]) -> tuple[int, dict[Partition, _Marks]]:
    """(rate in bytes/s, marks). Refused if impossible."""
    if len(old.brokers()) < 2:
        raise Refused(_title(acts), [f"cluster {old.name} has one broker only: use strategy offline or recreate"])
    foreign = throttled(old, {p.topic for p in points})
    if foreign:
        raise Refused(_title(acts), [f"somebody throttles replicas of {some(foreign)} already: take that away first"])
    starts = list_offsets(old, points, Point.START)
    creep, rest_bytes = (round((seconds / QUOTA_S + 2) * FETCH) for seconds in (WAIT_S, min(WAIT_S, HASTE_S)))
    marks, too_short = dict[Partition, _Marks](), list[str]()
    rate = FASTEST
    with LogReader(acts.link.source) as reader:
        for partition, point in points.items():
            first = _bytes_before(reader, partition, starts[partition], point, creep + FETCH)
            rest = _bytes_before(reader, partition, starts[partition], point, rest_bytes)
            last = _bytes_before(reader, partition, starts[partition], point, 2 * FETCH)
            if first is None or rest is None or last is None:
                too_short.append(f"{partition} below {point}")
                continue
            marks[partition] = _Marks(brake=first, rest=rest, last=last)
            size = _bytes_between(reader, partition, starts[partition], first, FASTEST * 2)
            rate = min(rate, max(FETCH // 4, round(size / APPROACH_S)))
    if too_short:
        raise Refused(
            _title(acts),
            [
                f"fewer than {(creep + FETCH) >> 20} MiB of {some(too_short)} could stay: logs as short as that are "
                "copied anew; abort, and plan with TOPIC=recreate"
            ],
        )
    return rate, marks


def check_majority(acts: Acts, old: ClusterClient, points: Mapping[Partition, Offset]) -> None:
    """Refused without a controller quorum: nobody would elect the short replica."""
    now, controllers = placements(old, {p.topic for p in points}), quorum(old)
    for leader in sorted(set(only_one({p: now[p] for p in points}).values())):
        if controllers is None or controllers.survives(leader):
            continue
        away = ", ".join(map(str, sorted(controllers.voters - controllers.alive)))
        raise Refused(
            _title(acts),
            [
                f"broker {leader} would have to be stopped, and is needed: of {len(controllers.voters)} controllers of "
                f"{old.name} {len(controllers.alive)} are alive, without it they have no majority to elect anybody. "
                + (f"Start node {away} first, then resume; or abort" if away else "Abort")
                + ", and plan with offline or recreate"
            ],
        )


def _bytes_before(reader: LogReader, partition: Partition, start: Offset, point: Offset, wanted: int) -> Offset | None:
    """Highest offset with `wanted_bytes` between it and the point. None: log too short."""
    distance = 1000
    while True:
        low = Offset(max(start, point - distance))
        size = 0
        found = [(header.base_offset, len(batch)) for header, batch in reader.batches(partition, low, point)]
        for base, length in reversed(found):
            size += length
            if size >= wanted:
                return Offset(max(start, base))
        if low == start:
            return None
        distance *= 4


def _bytes_between(reader: LogReader, partition: Partition, start: Offset, end: Offset, enough: int) -> int:
    size = 0
    for _, batch in reader.batches(partition, start, end):
        size += len(batch)
        if size > enough:
            break
    return size


@contextmanager
def _throttles(
    acts: Acts, old: ClusterClient, leader: int, follower: int, points: Mapping[Partition, Offset]
) -> Iterator[Throttled]:
    """Recorded before they are set; removed in any case, if need be by a resumed run."""
    _release(acts, old)  # the previous leader's: their record is overwritten next
    topics = tuple(sorted({p.topic for p in points}))
    left = Throttled(topics=topics, broker=follower, rate=rate_of(old, follower))
    acts.journal.keep("align", left)
    try:
        throttle(old, points, leader, follower)
        yield left
    finally:
        try:
            _release(acts, old)
        except RemoteFault as error:
            acts.say(f"throttles of {old.name} stay for now: {error}; resume takes them away")


def _release(acts: Acts, old: ClusterClient) -> None:
    left = acts.journal.kept("align", Throttled)
    if left is not None and left.broker >= 0:
        unthrottle(old, left.topics)
        set_rate(old, left.broker, left.rate)
        # Until brokers show it, our own throttle would look foreign.
        _until(
            lambda: not throttled(old, left.topics) and rate_of(old, left.broker) == left.rate,
            f"cluster {old.name}: broker {left.broker} and its topics are still shown as throttled",
        )
        acts.journal.keep("align", Throttled(topics=(), broker=-1, rate=None))


def _approach(old: ClusterClient, follower: int, marks: Mapping[Partition, _Marks]) -> None:
    before, moved = dict[Partition, Offset](), time.monotonic()
    while True:
        ends = replica_ends(old, follower, marks)
        if any(end >= marks[p].brake for p, end in ends.items()):
            return
        if ends != before:
            before, moved = ends, time.monotonic()
        if time.monotonic() - moved > STALL_S:
            stuck = some(f"{p} at {end}" for p, end in ends.items())
            raise Unreachable(f"cluster {old.name}: broker {follower} does not follow, {stuck}: resume")
        time.sleep(LOOK_S)


def _park(acts: Acts, old: ClusterClient, follower: int, marks: Mapping[Partition, _Marks], rate: int) -> float:
    """Advance fetch by fetch until no replica ends in a transaction. Returns the seconds left."""
    left_s = WAIT_S
    while True:
        set_rate(old, follower, "1")
        _until(lambda: rate_of(old, follower) == "1", f"cluster {old.name}: broker {follower} was not slowed down")
        ends = replica_ends(old, follower, marks)
        inside = _in_transactions(old, follower, marks)
        if not inside:
            if replica_ends(old, follower, marks) == ends:
                return left_s
            continue
        if any(end > marks[p].rest for p, end in ends.items()):
            raise Refused(
                _title(acts),
                [
                    f"wherever the new replicas could be held, a transaction was open: {some(inside)}. Resume to try "
                    f"again; or delete the topic on {old.name}, whose tail is saved, and resume: then all is copied"
                ],
            )
        left_s = min(WAIT_S, HASTE_S)
        set_rate(old, follower, str(min(rate, FETCH)))
        _until(partial(_moved, old, follower, ends), f"cluster {old.name}: broker {follower} did not follow")


def _moved(old: ClusterClient, follower: int, before: Mapping[Partition, Offset]) -> bool:
    return replica_ends(old, follower, before) != before


def _in_transactions(old: ClusterClient, follower: int, partitions: Collection[Partition]) -> list[Partition]:
    states = describe_producers(old, partitions, follower)
    return [p for p, found in states.items() if any(view.open_transaction_start >= 0 for view in found)]


def _stopped(old: ClusterClient, leader: int, follower: int, marks: Mapping[Partition, _Marks]) -> bool:
    beyond = [p for p, end in replica_ends(old, follower, marks).items() if end > marks[p].last]
    if beyond:
        raise MirrorError(
            f"cluster {old.name}: broker {leader} was not stopped in time, {some(beyond)} went on: resume"
        )
    return leader not in old.brokers()


def _check(acts: Acts, old: ClusterClient, leader: int, follower: int, points: Mapping[Partition, Offset]) -> None:
    ends = replica_ends(old, follower, points)
    wrong = [f"{p}: {ends.get(p, 'nothing')}" for p, point in points.items() if p not in ends or ends[p] > point]
    wrong += [f"{p}: in a transaction" for p in _in_transactions(old, follower, points)]
    if wrong:
        reason = f"broker {follower} ends where it must not: {some(wrong)}. Start broker {leader} again, then resume"
        raise Refused(_title(acts), [reason])


def _leads(old: ClusterClient, follower: int, points: Mapping[Partition, Offset]) -> bool:
    now = placements(old, {p.topic for p in points})
    return all(now[p].leader == follower for p in points)


def _readable(old: ClusterClient, points: Mapping[Partition, Offset]) -> bool:
    ends, stable = (list_offsets(old, points, where) for where in (Point.LOG_END, Point.STABLE_END))
    return all(stable[p] == ends[p] <= point for p, point in points.items())


def _until(done: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > deadline:
            raise Unreachable(f"{problem} within {WAIT_S:.0f} s; then resume")
        time.sleep(LOOK_S)


def _title(acts: Acts) -> str:
    return (
        f"failback {acts.journal.run_id}: step align: logs of {acts.link.source.name} are to be cut by a short replica"
    )
