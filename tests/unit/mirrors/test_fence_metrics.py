"""The standing fence's figures: what is not known or not there has no sample."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from mirror_core.decide.fence_state import FenceDecision, FenceState
from mirror_core.mirrors.fence_metrics import FENCE_METRICS, FenceCollector, collect_fence_metrics
from mirror_core.model.logs import LogSettings
from mirror_core.model.names import Offset, Partition
from mirror_core.model.pending_fence import LateSplit
from mirror_core.supervisor.child_commands import build_watch_command
from tests.support.mirror_views import MIRROR

SHOWN_LABELS = ("state", "topic", "written")


def samples(found: FenceDecision) -> dict[tuple[str, str], float]:
    """By metric and `SHOWN_LABELS`."""
    return {
        (
            s.name.removeprefix("mirrorbook_"),
            " ".join(s.labels[n] for n in ("state", "topic", "written") if n in s.labels),
        ): s.value
        for family in collect_fence_metrics(MIRROR, found, 5_000)
        for s in family.samples
        if (s.labels["mirror"], s.labels["cluster"]) == ("m", "east")
    }


def test_figures_are_those_of_the_newest_finding() -> None:
    found = FenceDecision(
        state=FenceState.APPLIED,
        late_split=LateSplit(
            before={Partition("a", 0): (Offset(3), Offset(5)), Partition("a", 1): (Offset(0), Offset(7))},
            since={Partition("a", 0): (Offset(5), Offset(8))},
            unknown={Partition("c", 0): (Offset(0), Offset(1))},
        ),
        written_ranges={Partition("b", 0): (Offset(10), Offset(11))},
    )
    assert samples(found) == {
        ("standing_fence", "pending"): 0,
        ("standing_fence", "applied"): 1,
        ("standing_fence", "watched"): 0,
        ("standing_fence", "lifting"): 0,
        ("pending_fence_answers", ""): 0,
        ("standing_fence_looked_timestamp_seconds", ""): 5,
        ("slipped_in_offsets", "a before"): 9,
        ("slipped_in_offsets", "a since"): 3,
        ("slipped_in_offsets", "c unknown"): 1,
        ("unfenced_offsets", "b"): 1,
    }


def test_a_source_that_answers_while_its_fence_is_pending_is_one() -> None:
    assert samples(FenceDecision(state=FenceState.PENDING, is_exposed=True))["pending_fence_answers", ""] == 1


def test_a_scrape_before_the_first_look_has_nothing_and_then_every_family() -> None:
    registry, shown = CollectorRegistry(), FenceCollector(MIRROR)
    registry.register(shown)

    def read() -> set[str]:
        text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
        return {family.name for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]

    assert read() == set()
    shown.update(FenceDecision(state=FenceState.PENDING))
    assert read() == {described.family for described in FENCE_METRICS}


def test_a_supervisors_watch_serves_metrics_where_replicate_did() -> None:
    def told(*options: str) -> tuple[str, ...]:
        return build_watch_command(Path("f.yaml"), MIRROR.name, options, LogSettings())[-4:]

    assert told("--runner", "local", "--metrics", "9465")[-2:] == ("--metrics", "9465")
    assert told("--metrics=9465", "--runner", "local")[-1] == "--metrics=9465"
    assert told("--runner", "local")[-2:] == ("--config", "f.yaml")
