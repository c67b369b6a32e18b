"""The loss bound as text, for plans and `describe`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from mirror_core.decide.clocks import UNKNOWN_TIME, age_s, ago, since
from mirror_core.decide.loss import Loss, loss, loss_of
from mirror_core.decide.view import SHOWN, Unseen, View, failed_of, some
from mirror_core.model.loss import Fate, PartitionLoss, TransactionLoss
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition, heartbeat_topic
from mirror_core.model.run import Mode
from mirror_core.model.sighting import Heartbeat, Sighting

NOT_MIRRORED: Final = "not mirrored"
LISTED: Final = "topics of the source last listed"
CUT: Final = "transactions cut in half"
IN_DOUBT: Final = "transactions in doubt"


def loses(view: View) -> bool:
    return not view.drained and (isinstance(view.source, Unseen) or view.mode is Mode.UNPLANNED)


def loss_figures(view: View) -> Iterator[tuple[str, str]]:
    if view.drained:
        but = ", but for what FAILED partitions miss" if failed_of(view) else ""
        known = loss_of(view)
        but += ", and for what has no copy" if known.uncopied else ""
        yield "loss", f"none{but}: the source was fenced and drained before it died"
        yield NOT_MIRRORED, uncopied_in_words(known)
    if not loses(view):
        return
    found = loss_of(view)
    yield "loss", found.bound
    yield NOT_MIRRORED, uncopied_in_words(found)
    yield "source last looked at", looked(found)
    yield LISTED, listed(found)
    yield "newest heartbeats on the destination", heartbeats(found.heartbeats, view.now_ms)
    apart = [one for one in found.partitions.values() if one.apart]
    if apart:
        missing = sum(one.missing or 0 for one in apart)
        yield "of the loss, FAILED or without a leader", f"{missing} offset(s) of {len(apart)} partition(s)"
    yield CUT, _cut(found, view.sighting, view.now_ms)


def cut_at(
    statuses: Mapping[Partition, PartitionStatus],
    sighting: Sighting | None,
    ends: Mapping[Partition, Offset],
    now_ms: int,
) -> Iterator[tuple[str, str]]:
    """What became of the observed transactions after the copy has ended. `ends`: last mirrored offsets."""
    found = loss(statuses, sighting, ends, (), now_ms=now_ms)
    yield CUT, _cut(found, sighting, now_ms)
    if sighting is None or sighting.transactions_ms is None:
        yield IN_DOUBT, "unknown"
        return
    doubtful = [_in_doubt(t) for t in found.transactions if t.fate is not Fate.ABSENT]
    more = [f"{found.unnamed} that were too many to be noted"] if found.unnamed else []
    yield IN_DOUBT, f"{some([*doubtful, *more]) or 'none'}; later ones of {len(found.busy)} id(s) that were busy then"


def _cut(found: Loss, sighting: Sighting | None, now_ms: int) -> str:
    if sighting is None or sighting.transactions_ms is None:
        return "unknown"
    return f"{len(found.cut)}, of those seen {since(now_ms, sighting.transactions_ms)}; of later ones it is not known"


def uncopied_in_words(found: Loss) -> str:
    rows = sorted(found.uncopied.items(), key=lambda row: (-(row[1].missing or 0), row[0]))
    if not rows:
        return "none" if found.listed_s is not None else "unknown: when the source's topics were listed is not known"
    blind = sum(one.missing is None for _, one in rows)
    more = f", and what {blind} of them hold is unknown" if blind else ""
    total = sum(one.missing or 0 for _, one in rows)
    listed = some(f"{p} ({one.uncopied}: {_offsets(one)})" for p, one in rows)
    return f"{len(rows):,} partition(s), {total:,} offset(s){more}: {listed}"


def uncopied_warning(view: View) -> Iterator[str]:
    if (view.drained or loses(view)) and (found := loss_of(view)).uncopied:
        yield (
            f"{view.mirror.destination} HAS NO COPY of these partitions of {view.mirror.source}, and all that they "
            f"hold would be lost: {uncopied_in_words(found)}"
        )


def _offsets(one: PartitionLoss) -> str:
    return "unknown" if one.missing is None else f"{one.missing:,} offset(s)"


def loss_warnings(view: View) -> Iterator[str]:
    found = loss_of(view)
    if view.sighting is None:
        yield f"no data plane of this mirror ever looked at {view.mirror.source}: what is missing is not known"
    elif not found.heartbeats:
        yield (
            f"no heartbeat of {view.mirror.source} has arrived on {view.mirror.destination} (topic "
            f"{heartbeat_topic(view.mirror.name)}): how far the copy had come in time is not known"
        )
    for partition, one in found.partitions.items():
        if one.leaderless and not one.failed:
            yield (
                f"nobody led {partition} on {view.mirror.source} when it was last looked at; its end was last seen "
                f"{_last_seen(one)}"
            )
    doubtful = [t for t in found.transactions if t.fate is not Fate.ABSENT]
    for transaction in doubtful[:SHOWN]:
        yield _in_doubt(transaction)
    if len(doubtful) > SHOWN or found.unnamed:
        yield f"{max(0, len(doubtful) - SHOWN) + found.unnamed} more transactions are in doubt"
    if found.busy:
        open_ones = some(f"{id_!r} ({some(parts)})" for id_, parts in found.busy.items())
        yield (
            f"transactions of these ids were open when last seen: {open_ones}. Others that began since may be cut, "
            "too: they have no name here"
        )


def in_words(one: PartitionLoss) -> str:
    if one.uncopied is not None:
        missing = "its loss is unknown" if one.missing is None else f"all of it is missing, {one.missing} offset(s)"
        return f"{one.uncopied}, {missing}, its end last seen {_last_seen(one)}"
    position = "position unknown" if one.position is None else f"position {one.position}"
    if one.missing is None:
        return f"{position}, loss unknown"
    return f"{position}, {one.missing} offset(s) known to be missing, its end last seen {_last_seen(one)}"


def behind(found: Loss) -> str:
    if found.furthest is None:
        return "unknown: no partition is copied"
    partition, one = found.furthest
    if one.behind_s is None:
        return f"unknown of {partition}"
    if found.listed_s is None:
        return "unknown of topics and partitions that are not mirrored yet"
    if found.listed_s > one.behind_s:
        return f"{found.listed_s:.1f} s: all topics of the source were listed then, and no partition is further behind"
    return f"{one.behind_s:.1f} s: the destination holds all that {partition} had then, and no other is further behind"


def looked(found: Loss) -> str:
    return UNKNOWN_TIME if found.silent_s is None and found.clocks_differ else ago(found.silent_s)


def listed(found: Loss) -> str:
    return UNKNOWN_TIME if found.listed_s is None and found.clocks_differ else ago(found.listed_s)


def _last_seen(one: PartitionLoss) -> str:
    return UNKNOWN_TIME if one.age_s is None and one.seen_end is not None else ago(one.age_s)


def heartbeats(found: tuple[Heartbeat, ...], now_ms: int) -> str:
    if not found:
        return "none"
    return some(f"partition {beat.partition}: number {beat.number}, {_old(beat, now_ms)}" for beat in found)


def _old(beat: Heartbeat, now_ms: int) -> str:
    seconds = age_s(now_ms, beat.at_ms)
    return "of unknown age (clocks differ)" if seconds is None else f"{seconds:.1f} s old"


def _in_doubt(one: TransactionLoss) -> str:
    name = f"transaction {one.id!r} ({one.state} when last seen)"
    if one.fate is Fate.CUT:
        return f"{name}, if it was committed, is cut in half: {some(one.copied)} have it, {some(one.not_copied)} do not"
    if one.fate is Fate.BEGUN:
        return f"{name} has begun on {some(one.copied)}; whether its end is there is not known"
    return f"{name}: whether it is there as a whole is not known"
