"""Offline partitions of the source, and which of them a person may leave behind in a planned failover.

They can be neither drained nor compared. One that is left behind is fenced with its topic and promoted as the
destination has it; a failback finds and saves what only the source has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from mirror_core.decide.loss import loss_of
from mirror_core.decide.loss_figures import in_words
from mirror_core.decide.view import DestinationView, SourceView, View, barred, healthy, is_healthy, some
from mirror_core.model.names import Partition
from mirror_core.model.ruling import Barred
from mirror_core.model.run import Mode

LEFT: Final = "left behind"


def leaderless(view: View) -> tuple[Partition, ...]:
    """Those that a planned failover would have to drain; FAILED ones are not copied anyway."""
    if view.mode is not Mode.PLANNED or not isinstance(view.source, SourceView):
        return ()
    statuses = view.statuses  # of tens of thousands mostly none is without a leader: only these are looked at
    return tuple(sorted(p for p in set(view.source.leaderless) if p in statuses and is_healthy(statuses[p])))


def left_behind(view: View) -> tuple[Partition, ...]:
    return tuple(p for p in leaderless(view) if p in view.left)


def refusals(view: View) -> Iterator[str]:
    without, left, name = leaderless(view), left_behind(view), view.mirror.source
    if others := [p for p in without if p not in view.left]:
        word = (
            ""
            if any(_unsafe(view, without))
            else f", leave them behind (`mirrorbook failover run {view.mirror.name} --leave-behind`)"
        )
        yield (
            f"{name}: no leader for {some(others)}, so the rest cannot be copied: restore their brokers{word}, or use "
            "--mode unplanned"
        )
    if left:
        yield from _unsafe(view, left)


def _unsafe(view: View, without: Collection[Partition]) -> Iterator[str]:
    mirror, there, source = view.mirror, view.destination, view.source
    named = some(without)
    if mirror.homecoming:
        yield (
            f"{named} cannot be left behind on the way home: {mirror.destination} is the source again afterwards, and "
            f"nothing would save what only {mirror.source} has"
        )
    if barred(view) is Barred.BY_NOTHING:
        yield (
            f"{named} cannot be left behind: nothing fences {mirror.source}, so applications could write there, too, "
            "as soon as there is a leader"
        )
    mirrored = [p for p in healthy(view.statuses) if isinstance(source, SourceView) and p.topic in source.topics]
    if set(mirrored) <= set(without):
        yield (
            f"{mirror.source} has no leader for any partition that is mirrored well: nothing is left to be moved by a "
            "planned failover"
        )
    if isinstance(there, DestinationView) and view.active_run is None:  # a run waits for them, in its drain
        unknown = [p for p in without if p not in there.positions and p not in there.leaderless]
        if unknown:
            yield (
                f"{some(unknown)} cannot be left behind: how far {mirror.destination} holds them is not known, since a "
                "broker there does not answer"
            )


def warning(view: View) -> Iterator[str]:
    left, source = left_behind(view), view.mirror.source
    if not left:
        return
    losses = loss_of(view).partitions
    listed = some(f"{p} ({in_words(losses[p])})" for p in left)
    yield (
        f"{len(left)} partition(s) without a leader on {source} are left behind, and promoted with what "
        f"{view.mirror.destination} has of them: {listed}. What only {source} has of them stays there, fenced, until a "
        f"failback saves it. A broker that has lost {source}'s controllers and not its applications may take writes of "
        "them until it hears of the fence: see that it is down"
    )


def figure(view: View) -> Iterator[tuple[str, str]]:
    if left := left_behind(view):
        missing = _missing(view, left)
        known = [count for count in missing if count is not None]
        unknown = f" (unknown of {len(missing) - len(known)})" if len(known) < len(missing) else ""
        least = f"at least {sum(known)} offset(s) missing" if known else "how much is missing is unknown"
        yield LEFT, f"{len(left)} partition(s); {least}{unknown if known else ''}"


def foretold(view: View, counted: Collection[Partition]) -> tuple[int | None, bool]:
    missing = _missing(view, [p for p in left_behind(view) if p in counted])
    known = [count for count in missing if count is not None]
    return (sum(known) if known or not missing else None), bool(missing)


def _missing(view: View, left: Collection[Partition]) -> list[int | None]:
    losses = loss_of(view).partitions if left else {}
    return [losses[p].missing for p in left]
