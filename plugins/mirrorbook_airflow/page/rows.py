"""What the page shows of a mirror: the core's figures in rows, each with how old it is. Pure.

Unknown is a value. Strings are as others chose them: the templates escape them, and `shown` writes out what hides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.run_status import find_run_progress, format_stalled_alarms
from mirror_core.mirrors.describe import CLOCK_NOT_BEHIND, PartitionDescription
from mirror_core.model.mirror import DesiredState, Mirror, is_lease_fresh
from mirror_core.model.sync_state import DriftRow
from mirror_core.state.watcher_heartbeat import find_watcher_status
from mirrorbook_airflow.page.cards import (
    Card,
    changed_since,
    current,
    judged_age,
    last_drills,
    loss_card,
    proof_card,
    readiness_card,
    time_card,
    trouble_of,
)
from mirrorbook_airflow.page.forecast_panel import ForecastView, forecasts_of
from mirrorbook_airflow.page.mirror_state import Judged, Seen, Told
from mirrorbook_airflow.page.number_format import UNKNOWN, Age, age_of, counted, number
from mirrorbook_airflow.page.prometheus_history import Plot, plot, rate
from mirrorbook_airflow.page.runs import RunView, runs_of
from mirrorbook_airflow.page.tables import (
    GroupRow,
    PartitionLine,
    Table,
    TopicRow,
    drift_table,
    group_table,
    lateness,
    partition_table,
    topic_table,
)


@dataclass(frozen=True, slots=True)
class MirrorPage:
    """Everything on the page of one mirror."""

    name: str
    route: str
    owner: str
    """Whom to call; empty: nobody is named."""
    age: Age
    judged: Age
    alarms: tuple[str, ...]
    cards: tuple[Card, ...]
    facts: Mapping[str, str]
    topics: Table[TopicRow]
    partitions: Table[PartitionLine]
    groups: Table[GroupRow]
    drift: Table[DriftRow]
    drift_words: str
    plots: tuple[Plot, ...]
    runs: tuple[RunView, ...]
    forecasts: tuple[ForecastView, ...]


def mirror_page(
    mirror: Mirror,
    told: Told,
    seen: Seen | None,
    judged: Judged | None,
    now_ms: int,
    page: int = 1,
    topics_page: int = 1,
) -> MirrorPage:
    """What was known is not shown as what is: a figure that is too old is unknown, and the alarm says so.

    `page`: of the partitions; `topics_page`: of the topics.
    """
    age = age_of(seen.at_ms if seen else None, now_ms)
    fresh = seen if seen and not age.stale else None
    known = current(judged, now_ms)
    asked = fresh.description if fresh else None
    rows = asked.rows if asked else _recorded(mirror, told)
    late = lateness(fresh, stopped=mirror.desired is DesiredState.STOPPED)
    runs = tuple(runs_of(told, mirror.name, now_ms))
    link = told.links.get(mirror.name)
    return MirrorPage(
        name=mirror.name,
        route=f"{mirror.source} → {mirror.destination}",
        owner=link.config.owner(mirror.name) if link else "",
        age=age,
        judged=judged_age(judged, now_ms),
        alarms=(*_alarms(told, seen, age, now_ms), *_nobody(told, mirror, now_ms)),
        cards=(
            readiness_card(judged, told, seen, mirror, counted(row.state for row in rows), now_ms),
            loss_card(fresh, mirror),
            time_card(known, runs, last_drills(told, mirror, now_ms)),
            proof_card(fresh, told, mirror, now_ms),
        ),
        facts=_facts(fresh, told, mirror, now_ms),
        topics=topic_table(rows, late, topics_page),
        partitions=partition_table(rows, late, page, asked=asked is not None),
        groups=_groups(known),
        drift=drift_table(known.drift or () if known else ()),
        drift_words=_drift_words(known),
        plots=_plots(seen),
        runs=runs,
        forecasts=tuple(forecasts_of(told.state, mirror.name)),
    )


def still_holds(judged: Judged | None, told: Told, mirror: Mirror, now_ms: int) -> Judged | None:
    """None when it is too old, or something was done with the mirror since."""
    known = current(judged, now_ms)
    return None if known is None or changed_since(known, told, mirror) else known


_NOT_ASKED: Final = dict.fromkeys(("position", "source_start", "source_end", "lag", "verified_end"))


def _recorded(mirror: Mirror, told: Told) -> tuple[PartitionDescription, ...]:
    """What the state topic says where the clusters' own word is missing: no offset is known now."""
    return tuple(
        PartitionDescription(
            partition=str(partition),
            state=status.state,
            lmo=status.lmo,
            kind=status.kind,
            reason=status.reason,
            never_copied=status.never_copied,
            **_NOT_ASKED,
        )
        for partition, status in sorted(told.state.partitions.get(mirror.name, {}).items())
    )


def _alarms(told: Told, seen: Seen | None, age: Age, now_ms: int) -> list[str]:
    """What must be read before any figure."""
    found = []
    if told.silent or age_of(told.at_ms, now_ms).stale:
        found.append(f"The state was last read {age_of(told.at_ms, now_ms)}: what is below may not be so now")
    if seen is None:
        found.append("Both clusters are being looked at for the first time")
    elif age.stale:
        found.append(f"Both clusters were last looked at {age}: offsets and lag are unknown now")
    clock = seen.description.facts["clock"] if seen and seen.description else CLOCK_NOT_BEHIND
    if clock != CLOCK_NOT_BEHIND:
        found.append(f"On the machine that serves this page {clock}")
    return [*found, *filter(None, [trouble_of(told, seen)])]


def _nobody(told: Told, mirror: Mirror, now_ms: int) -> Iterator[str]:
    """A run in the middle that nobody conducts, and an old source that nobody watches; not by a state that is old."""
    run = told.state.active_run(mirror.name)
    if run is not None:
        at = find_run_progress(run, told.state.steps_of(run))
        yield from format_stalled_alarms(mirror, run, at, told.conducted(run, now_ms))
    if not (told.silent or age_of(told.at_ms, now_ms).stale):
        yield from find_watcher_status(told.state, mirror.name, now_ms).format_alarms()


def _groups(known: Judged | None) -> Table[GroupRow]:
    words = known.decision.plan.groups if known and known.decision else {}
    return group_table(words, (known.unplanned.groups if known and known.unplanned else None) or {})


def _facts(seen: Seen | None, told: Told, mirror: Mirror, now_ms: int) -> dict[str, str]:
    """As `mirrorbook mirror describe` says them."""
    if seen and seen.description:
        return {name: number(value) for name, value in seen.description.facts.items()}
    lease = told.state.leases.get(mirror.name)
    return {
        "desired": mirror.desired,
        "data plane": f"{lease.owner}, generation {lease.generation}"
        if lease and is_lease_fresh(lease, now_ms)
        else UNKNOWN,
        "lag": UNKNOWN,
    }


def _drift_words(known: Judged | None) -> str:
    if known is None:
        return "unknown: not looked at yet"
    if known.drift is None:
        return f"unknown: {known.drift_trouble}"
    return counted(row.action for row in known.drift) or "nothing in scope"


def _plots(seen: Seen | None) -> tuple[Plot, ...]:
    samples = seen.samples if seen else ()
    copied = [(s.at_ms, s.copied) for s in samples]
    return (
        plot("Lag", "offsets", [(s.at_ms, s.lag) for s in samples]),
        plot("Loss known", "offsets", [(s.at_ms, s.missing) for s in samples]),
        plot("Throughput", "offsets/s", rate(copied)),
    )
