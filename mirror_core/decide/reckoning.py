"""What a plan forecasts in numbers, what its run counted, and the difference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mirror_core.decide import leaderless
from mirror_core.decide.drills import drill_name
from mirror_core.decide.evidence import BOTH_EMPTY
from mirror_core.decide.loss import loss_of
from mirror_core.decide.loss_figures import loses
from mirror_core.decide.slipped import Ranges, count, slipped_in, unknown_ends
from mirror_core.decide.steps import stood_still_s, took_s
from mirror_core.decide.view import DestinationView, SourceView, View, failed_of, some
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import HEARTBEATS, Offset, Partition
from mirror_core.model.parity import Verdict
from mirror_core.model.reckoning import Counted, Foretold
from mirror_core.model.run import Evidence, Mode, Run, RunKind, RunState, StepRecord
from mirror_core.model.standing import Debt

GROUPS: Final = 1000
SECONDS, LOST, AGAIN = "seconds without writes", "offsets lost", "offsets read again"
_UNSEEN: Final = "the old source was not seen since"

Reached = Mapping[str, Mapping[Partition, Offset]]
"""By group: the next offset to read of each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    of: str = ""
    least: float | None
    most: float | None
    counted: float | None
    error: float | None
    """Counted minus the nearest forecast value. None: one of them is unknown."""
    by: str = ""


def of_applications(partitions: Iterable[Partition]) -> frozenset[Partition]:
    """Without heartbeats, which are no loss. A drill has only heartbeats, so it keeps them."""
    found = frozenset(partitions)
    return frozenset(p for p in found if not p.topic.startswith(HEARTBEATS)) or found


# -- before -----------------------------------------------------------------------------------------------------------


def foretold(view: View) -> Foretold:
    lost, at_least = _lost(view)
    known = view.forecast
    return Foretold(
        seconds=known.seconds if known else None,
        steps=dict(known.steps) if known else {},
        basis=known.basis if known else "",
        lost=lost,
        at_least=at_least,
        again=dict(islice(_again(view), GROUPS)),
    )


def _lost(view: View) -> tuple[int | None, bool]:
    """A fenced, drained and compared source loses nothing but what FAILED partitions lack and left-behind
    ones hold.
    """
    if not loses(view):
        lost, more = leaderless.foretold(view, of_applications(view.statuses))
        return lost, more or bool(failed_of(view))
    partitions = loss_of(view).partitions
    missing = [partitions[p].missing for p in of_applications(partitions)]
    known = [count for count in missing if count is not None]
    return sum(known) if known else None, True


def _again(view: View) -> Iterator[tuple[str, tuple[int, int]]]:
    """Skips groups that are active on the destination."""
    here = view.destination
    if not isinstance(here, DestinationView) or here.groups_unseen:
        return
    if isinstance(view.source, SourceView) and view.mode is Mode.PLANNED:
        yield from ((group, (0, 0)) for group in sorted(view.source.committed) if group not in here.joined)
        return
    for group, offsets in sorted(here.committed.items()):
        if group not in here.joined and offsets.keys() <= here.positions.keys():
            yield group, (0, sum(max(0, here.positions[p] - o) for p, o in offsets.items()))


# -- afterwards -------------------------------------------------------------------------------------------------------


def lost_behind_fence(
    gate: Evidence, failed: Collection[Partition], left: Collection[Partition] = ()
) -> tuple[int | None, str]:
    if gate.get("verdict") == BOTH_EMPTY and not failed and not left:
        return 0, "neither side held a record behind the fence, and their logs begin and end at the same offsets"
    if gate.get("verdict") != Verdict.PASSED:
        return None, "nothing was compared"
    unknown = [f"of what had FAILED: {some(sorted(failed))}"] if failed else []
    unknown += [f"of what was left behind without a leader: {some(sorted(left))}"] if left else []
    if unknown:
        return None, f"not known {', '.join(unknown)}; of the others nothing, compared equal"
    return 0, "all was compared equal, up to the source's ends behind the fence"


def with_left(lost: int | None, why: str, left: Collection[Partition]) -> tuple[int | None, str]:
    if not left:
        return lost, why
    known = why if lost is None else f"at least {lost}, {why}"
    return None, f"{known}; not known of what was left behind without a leader: {some(sorted(left))}"


def with_uncopied(lost: int | None, why: str, without: Collection[Partition]) -> tuple[int | None, str]:
    mine = [p for p in sorted(without) if not p.topic.startswith(HEARTBEATS)]
    if not mine:
        return lost, why
    known = why if lost is None else f"at least {lost:,}, {why}"
    return None, f"{known}; not counted of partitions that had no copy: {some(mine)}"


def unseen_behind_fence(source: str, why: str) -> str:
    return f"nothing of what {source} had at the fence; whether it has taken anything since is not known: {why}"


def not_copied(debt: Debt, statuses: Mapping[Partition, PartitionStatus]) -> tuple[Ranges, tuple[Partition, ...]]:
    theirs = {p: statuses[p] for p in of_applications(statuses)}
    blind = {*unknown_ends(debt, theirs), *(p for p, status in theirs.items() if status.lmo is None)}
    return slipped_in(debt, theirs), tuple(sorted(blind))


def lost_with_source(debt: Debt | None, statuses: Mapping[Partition, PartitionStatus]) -> tuple[int | None, str]:
    if debt is None or not debt.ends.topics:
        return None, _UNSEEN
    taken, blind = not_copied(debt, statuses)
    if debt.paid_ms is None or blind:
        return None, f"the old source's log end is not known of {some(blind)}" if blind else "it is not fenced"
    return count(taken), (
        "by the old source's ends behind its fence: what it took after it had been given up is in this, too"
    )


def read_again(
    resumes: Reached, reached: Reached | None, ends: Mapping[Partition, Offset | None]
) -> dict[str, int | None]:
    """Records read again, by group.

    `resumes`: start offsets on the destination; `reached`: positions on the source, None if unknown; `ends`: next
    offset after the last mirrored one. What was lost cannot be read again.
    """
    return {
        group: _again_of(mine, None if reached is None else reached.get(group), ends)
        for group, mine in islice(sorted(resumes.items()), GROUPS)
    }


def _again_of(
    mine: Mapping[Partition, Offset], had: Mapping[Partition, Offset] | None, ends: Mapping[Partition, Offset | None]
) -> int | None:
    had = None if had is None else {p: offset for p, offset in had.items() if p in ends}
    if not had or not had.keys() <= mine.keys():
        return None  # of a partition without an offset the consumer's own setting decides where it begins
    total = 0
    for partition, offset in had.items():
        end = ends.get(partition)
        if end is None:
            return None
        total += max(0, min(offset, end) - mine[partition])
    return total


def complete(counted: Counted) -> bool:
    return counted.lost is not None and None not in counted.again.values()


def rows(run: Run, steps: Iterable[StepRecord]) -> tuple[Row, ...]:
    told = run.plan.foretold if isinstance(run.plan.foretold, Foretold) else None
    if run.plan.kind is not RunKind.FAILOVER or (told is None and run.counted is None):
        return ()
    known = list(steps)
    seconds = told.seconds if told else None
    found = [
        _row(
            SECONDS,
            "",
            seconds,
            seconds,
            stood_still_s(run, known),
            f"foretold by the {told.basis}" if told and told.basis else "",
        )
    ]
    for step in known:
        before = told.steps.get(step.step) if told else None
        found.append(_row("seconds of step", step.step, before, before, took_s(step)))
    counted = run.counted
    least = told.lost if told else None
    most = None if told is None or told.at_least else told.lost
    found.append(_row(LOST, "", least, most, counted.lost if counted else None, counted.lost_by if counted else ""))
    again, counts = told.again if told else {}, counted.again if counted else {}
    for group in sorted(again.keys() | counts.keys()):
        low, high = again.get(group, (None, None))
        found.append(_row(AGAIN, group, low, high, counts.get(group), counted.again_by if counted else ""))
    return tuple(found)


def _row(what: str, of: str, least: float | None, most: float | None, counted: float | None, by: str = "") -> Row:
    error = None
    if least is not None and counted is not None:
        nearest = counted if most is None else min(counted, most)
        error = counted - (least if most is None else max(least, nearest))
    return Row(what=what, of=of, least=least, most=most, counted=counted, error=error, by=by)


def past(runs: Iterable[Run], mirror: str) -> list[Run]:
    return sorted(
        (
            run
            for run in runs
            if run.plan.mirror in (mirror, drill_name(mirror))
            and run.plan.kind is RunKind.FAILOVER
            and run.state is RunState.DONE
        ),
        key=lambda run: -run.started_ms,
    )


# -- in words ---------------------------------------------------------------------------------------------------------


def foretold_in_words(row: Row) -> str:
    if row.least is None:
        return "unknown"
    if row.most is None:
        return f"at least {_number(row, row.least)}"
    if row.least == row.most:
        return _number(row, row.least)
    return f"{_number(row, row.least)} to {_number(row, row.most)}"


def counted_in_words(row: Row) -> str:
    return "unknown" if row.counted is None else _number(row, row.counted)


def error_in_words(row: Row) -> str:
    if row.error is None:
        return "unknown"
    return "none" if not row.error else f"{'+' if row.error > 0 else '-'}{_number(row, abs(row.error))}"


def _number(row: Row, value: float) -> str:
    return f"{value:.2f} s" if row.what.startswith("seconds") else f"{value:,.0f}"
