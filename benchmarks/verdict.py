"""Whether the figures of one run meet the targets. Pure: figures in, verdicts out; without samples nothing is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from statistics import median
from typing import Any, Final

from benchmarks.ground import DESTINATION, NEAR, SOURCE

Figures = Mapping[str, float]
"""One run of one copier: figure by name."""
Samples = Mapping[str, Sequence[Figures]]
"""All runs of one data set, by copier."""

OURS: Final = ("local", "spark")
PEER: Final = "mm2-tuned"
PEERS: Final = ("mm2-tuned", "mm2-default")
MORE_IS_BETTER: Final = frozenset({"mb_per_s"})

COPIER_CPU: Final = {"d1": Fraction(1, 7), "d2": Fraction(1, 10), "d3": Fraction(1, 10)}
"""At most this part of the tuned MirrorMaker's CPU seconds per GB, by data set."""
FAR_RATE: Final = Fraction(9, 10)
"""At least this part of what the same copier copies near by."""
FAR_TIME: Final = Fraction(1, 3)
"""At most this part of the tuned MirrorMaker's wall time, with the destination far away."""
FAR_P50_MS: Final = 5.0
"""More than one way."""
FAR_P99_MS: Final = 30.0
"""More than there and back."""
ALL_CPU: Final = Fraction(1, 3)
"""Copier and both brokers together."""


class Outcome(StrEnum):
    MET = "met"
    MISSED = "missed"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target, and what became of it."""

    target: str
    outcome: Outcome
    says: str


@dataclass(frozen=True, slots=True)
class Middle:
    """Several runs of one figure."""

    median: float
    best: float


def summary(samples: Samples) -> dict[str, dict[str, Middle]]:
    """Median and best of each figure, by copier; a figure that some runs lack is taken from the others."""
    return {
        copier: {
            name: Middle(median(values), max(values) if name in MORE_IS_BETTER else min(values))
            for name in dict.fromkeys(name for run in runs for name in run)
            if (values := [run[name] for run in runs if name in run])
        }
        for copier, runs in samples.items()
        if runs
    }


def of_copies(data_set: str, copiers: Sequence[str], samples: Samples) -> list[Verdict]:
    """Against tuned MirrorMaker 2 on the same data: CPU of the copier, CPU of all three, wall time."""
    found = []
    for copier in (copier for copier in OURS if copier in copiers):
        head = f"{data_set}, {copier}: "
        if data_set in COPIER_CPU:
            limit = COPIER_CPU[data_set]
            found.append(_part(f"{head}copier's CPU", samples, copier, "copier_cpu_s_per_gb", limit))
        found.append(_part(f"{head}CPU of copier and brokers", samples, copier, "all_cpu_s_per_gb", ALL_CPU))
        found.append(_below(f"{head}wall time", samples, copier, (PEER,), "copy_s_per_gb"))
    return found


def at_distance(copier: str, side: str) -> str:
    """Whose samples, where a relay stands between."""
    return f"{copier}, {side} far" if side in (SOURCE, DESTINATION) else f"{copier}, {side}"


def of_distances(data_set: str, copiers: Sequence[str], sides: Sequence[str], samples: Samples) -> list[Verdict]:
    """Against the same copier through the same relay without delay, and against tuned MirrorMaker 2 as far away."""
    found = []
    for copier in (copier for copier in OURS if copier in copiers):
        near = at_distance(copier, NEAR)
        for side in (side for side in sides if side != NEAR):
            far, peer = at_distance(copier, side), at_distance(PEER, side)
            target = f"{data_set}, {far}: rate at least {float(FAR_RATE):.0%} of near"
            found.append(_share(target, samples, (far, near), "mb_per_s", FAR_RATE))
            most = FAR_TIME if side == DESTINATION else Fraction(1)
            target = f"{data_set}, {far}: wall time at most {most} of {PEER}'s"
            found.append(_at_most(target, samples, (far, peer), "copy_s_per_gb", most))
    return found


def of_latencies(copiers: Sequence[str], samples: Samples) -> list[Verdict]:
    """Against the better MirrorMaker 2 of the run, with at least one epoch change inside every run of ours."""
    found = []
    for copier in (copier for copier in OURS if copier in copiers):
        for name in ("p50_ms", "p99_ms"):
            target = f"latency, {copier}: {name.removesuffix('_ms')}"
            if any(not run["epoch_changes"] for run in samples.get(copier, ())):
                found.append(Verdict(target, Outcome.INDETERMINATE, "a run without an epoch change"))
            else:
                found.append(_below(target, samples, copier, PEERS, name))
    return found


def of_far_latencies(
    copiers: Sequence[str], sides: Sequence[str], round_trip_ms: float, samples: Samples
) -> list[Verdict]:
    """Against the way itself: what is added to it. Of a source that is far away more is due by nature: a Fetch names
    its offset, so what is produced while an answer travels waits for the next one."""
    found = []
    for copier in (copier for copier in OURS if copier in copiers):
        for side in (side for side in sides if side != NEAR):
            name = at_distance(copier, side)
            runs = samples.get(name, ())
            limits = (("p50_ms", round_trip_ms / 2 + FAR_P50_MS), ("p99_ms", round_trip_ms + FAR_P99_MS))
            for figure, limit in limits:
                target = f"latency, {name}: {figure.removesuffix('_ms')} at most {limit:g} ms"
                values = [run[figure] for run in runs if figure in run]
                if not values:
                    found.append(Verdict(target, Outcome.INDETERMINATE, f"no figures of {name}"))
                    continue
                outcome = Outcome.MET if median(values) <= limit else Outcome.MISSED
                found.append(Verdict(target, outcome, f"{median(values):.1f} ms"))
    return found


def of_memory(idle_bytes: Sequence[int], peak_bytes: Sequence[int], budget_bytes: int) -> Verdict:
    """Most resident bytes while copying, less those of the same process with nothing to copy."""
    target = f"memory: within {budget_bytes >> 20} MiB and the interpreter"
    if not idle_bytes or not peak_bytes:
        return Verdict(target, Outcome.INDETERMINATE, "not measured")
    more = max(peak_bytes) - min(idle_bytes)
    says = f"{more / 2**20:.0f} MiB over the {min(idle_bytes) / 2**20:.0f} MiB of an idle one"
    return Verdict(target, Outcome.MET if more <= budget_bytes else Outcome.MISSED, says)


def _share(target: str, samples: Samples, copiers: tuple[str, str], figure: str, least: Fraction) -> Verdict:
    found = _medians(samples, copiers, figure)
    if isinstance(found, str):
        return Verdict(target, Outcome.INDETERMINATE, found)
    mine, other = found
    outcome = Outcome.MET if mine >= other * float(least) else Outcome.MISSED
    return Verdict(target, outcome, f"{mine:.1f} against {other:.1f}: {mine / other:.0%}")


def _at_most(target: str, samples: Samples, copiers: tuple[str, str], figure: str, most: Fraction) -> Verdict:
    found = _medians(samples, copiers, figure)
    if isinstance(found, str):
        return Verdict(target, Outcome.INDETERMINATE, found)
    mine, other = found
    outcome = Outcome.MET if mine <= other * float(most) else Outcome.MISSED
    return Verdict(target, outcome, f"{mine:.2f} against {other:.2f} s/GB: 1/{other / mine:.1f}")


def _part(target: str, samples: Samples, copier: str, figure: str, limit: Fraction) -> Verdict:
    target = f"{target} at most 1/{1 / limit} of {PEER}'s"
    found = _medians(samples, (copier, PEER), figure)
    if isinstance(found, str):
        return Verdict(target, Outcome.INDETERMINATE, found)
    mine, theirs = found
    outcome = Outcome.MET if mine <= theirs * float(limit) else Outcome.MISSED
    share = f"1/{theirs / mine:.1f}" if mine else "nothing"
    return Verdict(target, outcome, f"{mine:.2f} against {theirs:.2f} CPU s/GB: {share}")


def _below(target: str, samples: Samples, copier: str, peers: Sequence[str], figure: str) -> Verdict:
    target = f"{target} below MirrorMaker's"
    measured = [_medians(samples, (copier, peer), figure) for peer in peers]
    pairs = [pair for pair in measured if not isinstance(pair, str)]
    if not pairs:
        return Verdict(target, Outcome.INDETERMINATE, "; ".join(dict.fromkeys(map(str, measured))))
    mine, theirs = min(pairs, key=lambda pair: pair[1])
    outcome = Outcome.MET if mine < theirs else Outcome.MISSED
    return Verdict(target, outcome, f"{mine:.2f} against {theirs:.2f} {'ms' if figure.endswith('_ms') else 's/GB'}")


def _medians(samples: Samples, copiers: tuple[str, str], figure: str) -> tuple[float, float] | str:
    """Of both, or which one has no samples."""
    values = [[run[figure] for run in samples.get(copier, ()) if figure in run] for copier in copiers]
    for copier, of_copier in zip(copiers, values, strict=True):
        if not of_copier:
            return f"no figures of {copier}"
    return median(values[0]), median(values[1])


PLAN_S: Final = 2.0
"""An epoch's plan."""
CYCLE_S: Final = 30.0
"""Between two syncs, as `mirror_sync` is scheduled."""
CREATION: Final = 3.0
"""A new mirror is caught up within so many times what a broker takes to create its topics."""
FLOOR: Final = 2.0
"""A planned failover takes at most so many times what the brokers take for its requests."""


def of_scale(found: Mapping[str, Any]) -> list[Verdict]:
    """Many topics and groups: plan, sync, failover. The worst figure counts."""
    floor_s = found.get("floor_s")
    limit = floor_s * FLOOR if floor_s else None
    alone_s = found.get("create_floor_s")
    return [
        _within("scale: an epoch's plan", [found.get("plan_first_s"), *found.get("plan_s", [None])], PLAN_S),
        _within("scale: a sync with nothing to do", found.get("sync_s", [None]), CYCLE_S),
        _within("scale: a sync after every group has gone on", [found.get("sync_groups_moved_s")], CYCLE_S),
        _within("scale: the first sync", [found.get("sync_first_s")], CYCLE_S),
        _within("scale: planned failover, standstill, at most twice the floor", [found.get("still_s")], limit),
        _within(
            "scale: planned failover, the whole command, at most twice the floor", [found.get("failover_s")], limit
        ),
        _within(
            "scale: from `mirror create` to caught up, at most three times what a broker needs to create the topics",
            [found.get("create_to_caught_up_s")],
            alone_s * CREATION if alone_s else None,
        ),
    ]


def _within(target: str, seconds: Sequence[float | None], limit: float | None) -> Verdict:
    known = [one for one in seconds if one is not None]
    if limit is None or not known or len(known) < len(seconds):
        return Verdict(target, Outcome.INDETERMINATE, "not measured")
    worst = max(known)
    return Verdict(target, Outcome.MET if worst <= limit else Outcome.MISSED, f"{worst:.2f} of {limit:.2f} s")


COMPARED: Final = Fraction(1, 50)
"""Of all that was mirrored and proved, a planned failover compares at most this part behind its approval."""
STILL_MORE_S: Final = 1.0
"""Longer may applications stand still after much was mirrored than after little."""


def of_gate(runs: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """After little, and after much, which is the last one."""
    target = f"gate: compared behind the approval, at most {float(COMPARED):.0%} of what was mirrored"
    if not runs:
        return [Verdict(target, Outcome.INDETERMINATE, "not measured")]
    much = runs[-1]
    share = much["compared_bytes"] / (much["gigabytes"] * 1e9)
    found = [Verdict(target, Outcome.MET if share <= float(COMPARED) else Outcome.MISSED, f"{share:.3%}")]
    target = f"gate: standstill after much within {STILL_MORE_S:g} s of that after little"
    if len(runs) < 2:
        return [*found, Verdict(target, Outcome.INDETERMINATE, "one size only")]
    more = much["still_s"] - runs[0]["still_s"]
    says = " and ".join(f"{run['still_s']:.2f} s after {run['gigabytes']:.1f} GB" for run in (runs[0], much))
    return [*found, Verdict(target, Outcome.MET if more <= STILL_MORE_S else Outcome.MISSED, says)]
