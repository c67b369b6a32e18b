"""Truncation of the old source's logs at failback.

`offline`: people cut log files of stopped brokers. A returning broker follows the others, so a cut replica would be
filled again: each partition is first reduced to one replica, and gets the others back later.

`replica` and `handover`: a new replica is parked below the point and leads; others truncate. `replica` has people stop
the leader, then elects uncleanly. `handover` makes the leader add the short replica to the in-sync ones.

A replica outside the ISR can be throttled (KIP-73), not stopped: after ten seconds the quota window forgets, and it
fetches once more. So it is parked with time left to stop the leader; what it lacks is copied again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, describe_producers, list_offsets, list_replica_ends
from mirror_core.kafka.log_reader import LogReader
from mirror_core.kafka.reassignment import (
    FOLLOWER_THROTTLE_RATE,
    ReplicaPlacement,
    cancel_reassignments,
    claim_in_sync,
    elect_preferred_leaders,
    elect_unclean_leaders,
    fetch_throttle_rate,
    format_unthrottle_command,
    list_placements,
    list_throttled_topics,
    reassign,
    set_throttle_rate,
    throttle_partitions,
    unthrottle_topics,
    wait_for_replicas,
)
from mirror_core.model.errors import MirrorError, MissingPermission, Refused, RemoteFault, Unreachable
from mirror_core.model.files import report_write_errors
from mirror_core.model.names import Offset, Partition
from mirror_core.model.run import FailbackStrategy
from mirror_core.model.text import format_address
from mirror_core.runbook.run_services import StepContext
from mirror_core.runbook.step_records import ReplicaThrottle, SalvageResult, read_output

POINTS_FILE = "points.json"


def truncate_offline(
    context: StepContext,
    old: ClusterClient,
    points: Mapping[Partition, Offset],
    original_replicas: Mapping[Partition, tuple[int, ...]],
) -> dict[str, str | int]:
    """Returns if no log exceeds its point. Otherwise Refused, with instructions. Idempotent."""
    if not points:
        return {}
    current = list_placements(old, points)
    ends, stable = (list_offsets(old, points, point) for point in (OffsetPoint.LOG_END, OffsetPoint.STABLE_END))
    too_long = {p: end for p, end in points.items() if ends[p] > end}
    if too_long:
        hosts = choose_remaining_brokers({p: current[p] for p in too_long})
        reduced_replicas = {p: (node,) for p, node in hosts.items() if current[p].replicas != (node,)}
        if reduced_replicas:
            reassign(old, reduced_replicas)
            wait_for_replicas(old, reduced_replicas)
        file = _write_points(context, old, points)
        raise Refused(
            _format_offline_title(context), tuple(_format_instructions(context, old, file, hosts)), "logs_to_be_cut"
        )
    open_logs = [
        f"{p} ends at {ends[p]}, its last stable offset is {stable[p]}" for p in points if stable[p] != ends[p]
    ]
    if open_logs:
        raise Refused(
            _format_offline_title(context),
            [
                f"cut inside of a transaction: {join_limited(open_logs)}. End it with kafka-transactions.sh abort, then"
                " resume"
            ],
            reason_code="cut_in_transaction",
        )
    returned_replicas = {
        p: original_replicas[p] for p in points if set(current[p].replicas) != set(original_replicas[p])
    }
    if returned_replicas:
        reassign(old, returned_replicas)  # filled while the mirror runs
    return {
        "cut": join_limited(f"{p} at {ends[p]}, at most {truncation_point}" for p, truncation_point in points.items()),
        "refilled": len(returned_replicas),
    }


def choose_remaining_brokers(current: Mapping[Partition, ReplicaPlacement]) -> dict[Partition, int]:
    """In sync, as few brokers as possible in all."""
    replica_counts = Counter(node for placement in current.values() for node in placement.in_sync)
    return {
        p: max(replicas.in_sync, key=lambda node: (replica_counts[node], -node))
        for p, replicas in current.items()
        if replicas.in_sync
    }


def _format_offline_title(context: StepContext) -> str:
    return f"failback {context.journal.run_id}: step align waits for logs of {context.link.source.name} to be cut"


def _format_instructions(
    context: StepContext, old: ClusterClient, file: Path, hosts: Mapping[Partition, int]
) -> Iterator[str]:
    yield (
        f"copy {file} to the host of each broker that is named here; it says where logs have to end. Then one broker "
        "after the other: controllers that are stopped with them must keep their majority"
    )
    addresses = old.metadata(()).brokers
    for node in sorted(set(hosts.values())):
        address = format_address(*addresses[node]) if node in addresses else "not answering now"
        broker_partitions = join_limited(sorted(p for p, n in hosts.items() if n == node))
        yield (
            f"broker {node} ({address}), {broker_partitions}: stop it; on its host `mirrorbook log truncate --log-dir"
            f" LOG_DIR --to {POINTS_FILE} --backup BACKUP_DIR` (LOG_DIR: its log.dirs; again for each); start it"
        )
    yield (
        f"then `mirrorbook failback resume {context.link.mirror.name}`. Until then these partitions have one replica "
        "each; the run gives the others back"
    )


def _write_points(context: StepContext, old: ClusterClient, points: Mapping[Partition, Offset]) -> Path:
    metadata = old.metadata({p.topic for p in points})
    rows: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(points.items()):
        rows.setdefault(partition.topic, {})[str(partition.index)] = offset
    topics = {
        topic: {"id": metadata.topics[topic].id, "partitions": topic_points} for topic, topic_points in rows.items()
    }
    file = context.services.run_dir(context.journal.run_id) / POINTS_FILE
    document = {"cluster_id": metadata.cluster_id, "run": context.journal.run_id, "topics": topics}
    with report_write_errors("points where logs have to end", file, "make room and rights there, then resume the run"):
        file.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
    return file


OPERATOR_WAIT_S = 300.0
MIN_OPERATOR_S = 60.0
"""At least this, if a place without an open transaction had to be found."""
HANDOVER_WAIT_S = 60.0
MIN_HANDOVER_S = 20.0
FETCH_BYTES: Final = 1 << 20
QUOTA_WINDOW_S: Final = 10.0
MAX_BYTES_PER_S: Final = 50_000_000
APPROACH_S: Final = 60.0
"""Small logs are followed slowly, to take about this long: they must not overshoot between two polls."""
POLL_S: Final = 0.1
STALL_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _ParkingMarks:
    throttle_at: Offset
    last_resting_offset: Offset
    """Beyond this, less than `MIN_OPERATOR_S` is left to stop the leader."""
    last_safe_offset: Offset
    """Beyond this, one more fetch may pass the point."""


def truncate_by_replica(
    context: StepContext,
    old: ClusterClient,
    points: Mapping[Partition, Offset],
    original_replicas: Mapping[Partition, tuple[int, ...]],
    strategy: FailbackStrategy,
) -> dict[str, str | int]:
    """Returns if no log exceeds its point. Strategy `replica` waits for an operator. Idempotent."""
    if not points:
        return {}
    _remove_throttles(context, old)
    is_handover = strategy is FailbackStrategy.HANDOVER
    while too_long := _find_too_long(old, points):
        current = list_placements(old, too_long)
        # Of a handover that was interrupted a short replica may be in sync: only the leader is known to be long.
        hosts = {p: current[p].leader for p in too_long} if is_handover else choose_remaining_brokers(current)
        for leader in sorted(set(hosts.values())):
            leader_points = {p: point for p, point in too_long.items() if hosts[p] == leader}
            leader_replicas = {p: original_replicas[p] for p in leader_points}
            _truncate_leader(context, old, leader, leader_points, leader_replicas, strategy)
        if not is_handover:
            break
    throttled_brokers = _remove_throttles(context, old)  # what failed to be removed must go now
    for broker in throttled_brokers:
        command = format_unthrottle_command(context.link.source.control["bootstrap.servers"], broker)
        context.print_line(
            f"broker {broker} of {old.name} is away and still has this run's setting {FOLLOWER_THROTTLE_RATE}. It slows"
            f" nothing down, since no topic names it. When it is back: `{command}`"
        )
    away_brokers = sorted({node for p in points for node in original_replicas[p]} - set(old.brokers()))
    if away_brokers and not is_handover:  # a dead conductor could not say so
        context.print_line(
            f"start broker {', '.join(map(str, away_brokers))} of {old.name} again, if it was stopped for this run"
        )
    # With min.insync.replicas above 1 a lone leader's end is not readable.
    _wait_until(
        lambda: _are_logs_readable(old, points),
        f"cluster {old.name}: {join_limited(sorted(points))} cannot be read to the end",
    )
    # After a handover the old leader is in sync while its log is still long: it could lead again.
    _wait_until(
        lambda: _are_replicas_short(old, points),
        f"cluster {old.name}: replicas of {join_limited(sorted(points))} did not truncate themselves",
    )
    _drop_away_replicas(old, points)
    ends = list_offsets(old, points, OffsetPoint.LOG_END)
    current = list_placements(old, points)
    returned_replicas = {
        p: original_replicas[p] for p in points if set(current[p].replicas) != set(original_replicas[p])
    }
    if returned_replicas:
        reassign(old, returned_replicas)
    return {
        "handed_over" if is_handover else "led_by_a_short_replica": join_limited(
            f"{p} at {ends[p]}, at most {truncation_point}" for p, truncation_point in points.items()
        ),
        **({"brokers_left_throttled": join_limited(throttled_brokers)} if throttled_brokers else {}),
    }


def _find_too_long(old: ClusterClient, points: Mapping[Partition, Offset]) -> dict[Partition, Offset]:
    """Also where the leading replica passed the point before its election.

    Such a log may end within a transaction that never gets its marker, and must be cut before it.
    """
    ends = list_offsets(old, points, OffsetPoint.LOG_END)
    too_long = {p: truncation_point for p, truncation_point in points.items() if ends[p] > truncation_point}
    for partition, producers in describe_producers(old, points.keys() - too_long.keys()).items():
        starts = [producer.open_transaction_start for producer in producers if producer.open_transaction_start >= 0]
        if starts:
            too_long[partition] = Offset(min(starts))
    return too_long


def _truncate_leader(
    context: StepContext,
    old: ClusterClient,
    leader: int,
    points: Mapping[Partition, Offset],
    original_replicas: Mapping[Partition, tuple[int, ...]],
    strategy: FailbackStrategy,
) -> None:
    rate, marks = plan_parking(context, old, points, strategy)
    other_brokers = [node for node in old.brokers() if node != leader]
    follower = max(other_brokers, key=lambda node: (sum(node in nodes for nodes in original_replicas.values()), -node))
    with _throttle_replicas(context, old, leader, follower, points) as throttle_record:
        set_throttle_rate(old, follower, str(rate))
        cancel_reassignments(old, points)  # a dead conductor's reassignment
        is_handover = strategy is FailbackStrategy.HANDOVER  # the first replica is the one that is to lead
        for nodes in ((leader,), (follower, leader) if is_handover else (leader, follower)):
            reassign(old, dict.fromkeys(points, nodes))
            if nodes == (leader,):
                wait_for_replicas(old, dict.fromkeys(points, nodes))
        _wait_for_approach(old, follower, marks)
        left_s = _park_replicas(context, old, follower, marks, strategy)
        if is_handover:
            # Before the claim, too: once in sync this replica may come to lead without us.
            _check_short_replicas(context, old, leader, follower, points, strategy)
            refuse_growth(context, old, points, f"logs of {old.name} are not truncated")
            leader_epochs = {p: placement.leader_epoch for p, placement in list_placements(old, points).items()}
            context.journal.save_checkpoint("align", throttle_record)  # fenced if we lost the run
            _claim_in_sync(old, leader, follower, leader_epochs, left_s)
            # Behind the claim: until this replica has them, the leader acknowledges no further acks=all writes.
            _check_short_replicas(context, old, leader, follower, points, strategy)
            refuse_growth(context, old, points, f"logs of {old.name} are not truncated")
            context.journal.save_checkpoint("align", throttle_record)  # fenced if we lost the run: then nothing leads
            elect_preferred_leaders(old, points)
            _wait_until(
                lambda: _is_follower_leading(old, follower, points), f"broker {follower} was not elected", left_s
            )
            return
        refuse_growth(context, old, points, f"logs of {old.name} are not truncated")
        context.print_line(
            f"stop broker {leader} of {old.name} now, within {left_s:.0f} s; it will be started again in a moment"
        )
        _wait_until(lambda: _is_leader_stopped(old, leader, follower, marks), f"broker {leader} was not stopped")
        _check_short_replicas(context, old, leader, follower, points, strategy)
        context.journal.save_checkpoint("align", throttle_record)  # fenced if we lost the run: then elect nobody
        elect_unclean_leaders(old, points)
        _wait_until(lambda: _is_follower_leading(old, follower, points), f"broker {follower} was not elected")
        context.print_line(
            f"broker {follower} leads: start broker {leader} of {old.name} again, within {OPERATOR_WAIT_S:.0f} s"
        )
        _wait_until(lambda: leader in old.brokers(), f"broker {leader} was not started again: start it")


def _claim_in_sync(
    old: ClusterClient, leader: int, follower: int, leader_epochs: Mapping[Partition, int], limit_s: float
) -> None:
    """`leader_epochs`: from when we had the run for certain. A conductor that lost it must claim nothing later."""

    def is_claimed() -> bool:
        current = list_placements(old, leader_epochs)
        unclaimed = [p for p in leader_epochs if follower not in current[p].in_sync]
        if unclaimed:  # a fetch of the real replica may have come between
            claim_in_sync(old, leader, follower, list_offsets(old, unclaimed, OffsetPoint.LOG_END), leader_epochs)
        return not unclaimed

    way_out = _format_last_way(old, leader_epochs)
    try:
        _wait_until(
            is_claimed,
            f"cluster {old.name}: broker {leader} did not count broker {follower} as in sync",
            limit_s,
            f"resume to try again; or {way_out}",
        )
    except MissingPermission as error:
        raise MissingPermission(f"{error}. Grant it, then resume; or {way_out}") from None


def refuse_growth(context: StepContext, old: ClusterClient, partitions: Collection[Partition], kept: str) -> None:
    """Only salvaged records may be discarded. Checked last."""
    saved = read_output(context.journal, "salvage", SalvageResult).ends.to_mapping()
    current_ends = list_offsets(old, partitions, OffsetPoint.LOG_END)
    grown = [f"{p} from {saved.get(p, 0)} to {end}" for p, end in current_ends.items() if end > saved.get(p, 0)]
    if grown:
        raise Refused(
            f"failback {context.journal.run_id}: {kept}",
            [
                f"something has grown since its tail was salvaged: {join_limited(grown)}: somebody writes in spite of"
                " the fence. End that and resume: what has come since is salvaged then, too"
            ],
            reason_code="old_source_grown",
        )


def _format_last_way(old: ClusterClient, partitions: Iterable[Partition]) -> str:
    topics = sorted({p.topic for p in partitions})
    return f"delete {join_limited(topics)} on {old.name}, whose tail is saved, and resume: then all is copied anew"


def _get_hold_times(strategy: FailbackStrategy) -> tuple[float, float]:
    """Seconds that a parked replica must stay below its point: usually, and at least."""
    if strategy is FailbackStrategy.HANDOVER:
        return HANDOVER_WAIT_S, MIN_HANDOVER_S
    return OPERATOR_WAIT_S, min(OPERATOR_WAIT_S, MIN_OPERATOR_S)


def plan_parking(
    context: StepContext, old: ClusterClient, points: Mapping[Partition, Offset], strategy: FailbackStrategy
) -> tuple[int, dict[Partition, _ParkingMarks]]:
    """(rate in bytes/s, marks). Refused if impossible."""
    if len(old.brokers()) < 2:
        reason = f"cluster {old.name} has one broker only: use strategy offline or recreate"
        raise _make_refusal(context, "strategy_replica_impossible", reason)
    foreign_throttles = list_throttled_topics(old, {p.topic for p in points})
    if foreign_throttles:
        reason = f"somebody throttles replicas of {join_limited(foreign_throttles)} already: take that away first"
        raise _make_refusal(context, "throttled_by_others", reason)
    starts = list_offsets(old, points, OffsetPoint.START)
    approach_bytes, rest_bytes = (
        round((seconds / QUOTA_WINDOW_S + 2) * FETCH_BYTES) for seconds in _get_hold_times(strategy)
    )
    marks, too_short = dict[Partition, _ParkingMarks](), list[str]()
    rate = MAX_BYTES_PER_S
    with LogReader(context.link.source) as reader:
        for partition, truncation_point in points.items():
            throttle_offset, resting_offset, safe_offset = (
                reader.find_offset_before(partition, starts[partition], truncation_point, wanted_bytes)
                for wanted_bytes in (approach_bytes + FETCH_BYTES, rest_bytes, 2 * FETCH_BYTES)
            )
            if throttle_offset is None or resting_offset is None or safe_offset is None:
                too_short.append(f"{partition} below {truncation_point}")
                continue
            marks[partition] = _ParkingMarks(
                throttle_at=throttle_offset, last_resting_offset=resting_offset, last_safe_offset=safe_offset
            )
            size = reader.measure_bytes(partition, starts[partition], throttle_offset, MAX_BYTES_PER_S * 2)
            rate = min(rate, max(FETCH_BYTES // 4, round(size / APPROACH_S)))
    if too_short:
        can_abort = not context.journal.is_begun("align")
        advice = "abort, and plan with TOPIC=recreate" if can_abort else _format_last_way(old, points.keys() - marks)
        raise _make_refusal(
            context,
            "log_too_short",
            f"fewer than {(approach_bytes + FETCH_BYTES) >> 20} MiB of {join_limited(too_short)} could stay: logs"
            f" as short as that are copied anew; {advice}",
        )
    return rate, marks


@contextmanager
def _throttle_replicas(
    context: StepContext, old: ClusterClient, leader: int, follower: int, points: Mapping[Partition, Offset]
) -> Iterator[ReplicaThrottle]:
    """Recorded before they are set; removed in any case, if need be by a resumed run."""
    _remove_throttles(context, old)  # the previous leader's: their record is overwritten next
    earlier = context.journal.load_checkpoint("align", ReplicaThrottle)
    throttle_record = ReplicaThrottle(
        topics=tuple(sorted({p.topic for p in points})),
        broker=follower,
        rate=fetch_throttle_rate(old, follower),
        away_rates={} if earlier is None else earlier.away_rates,
    )
    context.journal.save_checkpoint("align", throttle_record)
    try:
        throttle_partitions(old, points, leader, follower)
        yield throttle_record
    finally:
        try:
            _remove_throttles(context, old)
        except RemoteFault as error:
            context.print_line(f"throttles of {old.name} stay for now: {error}; resume takes them away")


def _remove_throttles(context: StepContext, old: ClusterClient) -> list[int]:
    """Returns brokers that are away. They keep a rate that slows nothing."""
    throttle_record = context.journal.load_checkpoint("align", ReplicaThrottle)
    if throttle_record is None:
        return []
    rates = dict(throttle_record.away_rates)
    if throttle_record.broker >= 0:
        rates[throttle_record.broker] = throttle_record.rate
    if not rates:
        return []
    unthrottle_topics(old, throttle_record.topics)
    present_rates = {broker: rates.pop(broker) for broker in old.brokers() if broker in rates}
    for broker, rate in present_rates.items():
        set_throttle_rate(old, broker, rate)
    # Until brokers show it, our own throttle would look foreign.
    _wait_until(
        lambda: (
            not list_throttled_topics(old, throttle_record.topics)
            and all(fetch_throttle_rate(old, broker) == rate for broker, rate in present_rates.items())
        ),
        f"cluster {old.name}: broker {join_limited(present_rates)} and its topics are still shown as throttled",
    )
    context.journal.save_checkpoint("align", ReplicaThrottle(topics=(), broker=-1, rate=None, away_rates=rates))
    return sorted(rates)


def _wait_for_approach(old: ClusterClient, follower: int, marks: Mapping[Partition, _ParkingMarks]) -> None:
    previous_ends, moved_at = dict[Partition, Offset](), time.monotonic()
    while True:
        ends = list_replica_ends(old, follower, marks)
        if any(end >= marks[p].throttle_at for p, end in ends.items()):
            return
        if ends != previous_ends:
            previous_ends, moved_at = ends, time.monotonic()
        if time.monotonic() - moved_at > STALL_S:
            stuck = join_limited(f"{p} at {ends.get(p, 'nothing')}" for p in marks)
            raise Unreachable(f"cluster {old.name}: broker {follower} does not follow, {stuck}: resume")
        time.sleep(POLL_S)


def _park_replicas(
    context: StepContext,
    old: ClusterClient,
    follower: int,
    marks: Mapping[Partition, _ParkingMarks],
    strategy: FailbackStrategy,
) -> float:
    """Returns the seconds left.

    Advances until no replica ends in a transaction, by a fetch every ten seconds: at a higher rate a slow machine would
    step over the places between transactions.
    """
    left_s, shortened_s = _get_hold_times(strategy)
    set_throttle_rate(old, follower, "1")
    _wait_until(
        lambda: fetch_throttle_rate(old, follower) == "1",
        f"cluster {old.name}: broker {follower} was not slowed down",
    )
    while True:
        ends = list_replica_ends(old, follower, marks)
        inside_transactions = _list_open_transactions(old, follower, marks)
        if not inside_transactions:
            if list_replica_ends(old, follower, marks) == ends:
                return left_s
            continue
        if any(end > marks[p].last_resting_offset for p, end in ends.items()):
            raise _make_refusal(
                context,
                "transaction_open",
                "wherever the new replicas could be held, a transaction was open:"
                f" {join_limited(inside_transactions)}. Resume to try again; or"
                f" {_format_last_way(old, inside_transactions)}",
            )
        left_s = shortened_s
        _wait_until(
            partial(_have_replicas_moved, old, follower, ends), f"cluster {old.name}: broker {follower} did not follow"
        )


def _have_replicas_moved(old: ClusterClient, follower: int, previous_ends: Mapping[Partition, Offset]) -> bool:
    return list_replica_ends(old, follower, previous_ends) != previous_ends


def _list_open_transactions(old: ClusterClient, follower: int, partitions: Collection[Partition]) -> list[Partition]:
    states = describe_producers(old, partitions, follower)
    return [p for p, producers in states.items() if any(producer.open_transaction_start >= 0 for producer in producers)]


def _is_leader_stopped(
    old: ClusterClient, leader: int, follower: int, marks: Mapping[Partition, _ParkingMarks]
) -> bool:
    beyond = [p for p, end in list_replica_ends(old, follower, marks).items() if end > marks[p].last_safe_offset]
    if beyond:
        raise MirrorError(
            f"cluster {old.name}: broker {leader} was not stopped in time, {join_limited(beyond)} went on: resume"
        )
    return leader not in old.brokers()


def _check_short_replicas(
    context: StepContext,
    old: ClusterClient,
    leader: int,
    follower: int,
    points: Mapping[Partition, Offset],
    strategy: FailbackStrategy,
) -> None:
    ends = list_replica_ends(old, follower, points)
    problem_lines = [
        f"{p}: {ends.get(p, 'nothing')}"
        for p, truncation_point in points.items()
        if p not in ends or ends[p] > truncation_point
    ]
    problem_lines += [f"{p}: in a transaction" for p in _list_open_transactions(old, follower, points)]
    if problem_lines:
        remedy = (
            f"Resume: another replica is made. Or {_format_last_way(old, points)}"
            if strategy is FailbackStrategy.HANDOVER
            else f"Start broker {leader} again, then resume"
        )
        reason = f"broker {follower} ends where it must not: {join_limited(problem_lines)}. {remedy}"
        raise _make_refusal(context, "replica_not_short", reason)


def _is_follower_leading(old: ClusterClient, follower: int, points: Mapping[Partition, Offset]) -> bool:
    current = list_placements(old, points)
    return all(current[p].leader == follower for p in points)


def _are_logs_readable(old: ClusterClient, points: Mapping[Partition, Offset]) -> bool:
    ends, stable = (list_offsets(old, points, point) for point in (OffsetPoint.LOG_END, OffsetPoint.STABLE_END))
    return all(stable[p] == ends[p] <= truncation_point for p, truncation_point in points.items())


def _are_replicas_short(old: ClusterClient, points: Mapping[Partition, Offset]) -> bool:
    current, brokers = list_placements(old, points), old.brokers()
    if any(node not in brokers for p in points for node in current[p].in_sync):
        return False
    for broker in brokers:
        held_partitions = [p for p in points if broker in current[p].replicas]
        try:
            ends = list_replica_ends(old, broker, held_partitions) if held_partitions else {}
        except Unreachable:  # until it answers, or has left
            return False
        for p in held_partitions:
            if ends.get(p, 0) > points[p] or (p not in ends and broker in current[p].in_sync):
                return False
    return True


def _drop_away_replicas(old: ClusterClient, points: Mapping[Partition, Offset]) -> None:
    """Brokers have left: a long replica of theirs could still be eligible to lead (KIP-966)."""
    current, brokers = list_placements(old, points), set(old.brokers())
    kept_replicas = {p: current[p].in_sync for p in points if not set(current[p].replicas) <= brokers}
    if kept_replicas:
        reassign(old, kept_replicas)
        wait_for_replicas(old, kept_replicas)


def _wait_until(
    is_done: Callable[[], bool], problem: str, limit_s: float | None = None, remedy: str = "then resume"
) -> None:
    limit_s = OPERATOR_WAIT_S if limit_s is None else limit_s
    deadline = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > deadline:
            raise Unreachable(f"{problem} within {limit_s:.0f} s; {remedy}")
        time.sleep(POLL_S)


def _make_refusal(context: StepContext, reason_code: str, reason: str) -> Refused:
    title = (
        f"failback {context.journal.run_id}: step align: logs of {context.link.source.name} are to be cut by a short"
        " replica"
    )
    return Refused(title, [reason], reason_code)
