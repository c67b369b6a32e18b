"""Which mirrors Airflow's DAGs find in the state topics of the clusters that it knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException
from mirrorbook_airflow import mirror_lookup, operators

from mirror_core.kafka.config import Config
from mirror_core.model.errors import Unreachable
from mirror_core.model.mirror import DesiredState
from mirror_core.model.names import ClusterName, MirrorName
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import RunKind, RunState
from mirror_core.state import mirror_link
from mirror_core.state.state_records import State
from tests.support.cluster_names import LIFTING, LINK
from tests.support.mirror_views import RUN

WEST = LINK.mirror.destination
FORGED = replace(LINK.mirror, name=MirrorName("forged"), desired=DesiredState.STARTED)
OWN = replace(LINK.mirror, name=MirrorName("own"), desired=DesiredState.STARTED)


@pytest.fixture(autouse=True)
def two_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applications may write a topic on the source: it tells of a mirror towards another cluster."""
    debts = {one.name: replace(LIFTING, mirror=one.name, action=FenceAction.APPLY) for one in (FORGED, OWN)}
    answers = [
        (LINK.mirror.source, State(mirrors={FORGED.name: FORGED}, pending_fences=debts)),
        (WEST, State(mirrors={OWN.name: OWN}, pending_fences=debts)),
        (ClusterName("south"), Unreachable("it does not answer")),
    ]
    monkeypatch.setattr(mirror_lookup, "list_clusters", lambda: ("east", "south", "west"))
    monkeypatch.setattr(mirror_lookup, "provide_config", lambda name, clusters: None)
    both = Config(Path("mirrorbook.yaml"), {side.name: side for side in (LINK.source, LINK.destination)})
    monkeypatch.setattr(mirror_link, "load_clusters", lambda path: both)
    monkeypatch.setattr(mirror_link, "read_states", lambda config: iter(answers))


def test_a_mirror_that_a_run_holds_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one that nobody conducts."""
    held = State(mirrors={OWN.name: OWN}, runs={RUN.id: replace(RUN, plan=replace(RUN.plan, mirror=OWN.name))})
    monkeypatch.setattr(mirror_link, "read_states", lambda config: iter([(WEST, held)]))
    assert [found.mirror.name for found in mirror_lookup.list_watched_links([])] == ["own"]
    over = replace(RUN, plan=replace(RUN.plan, mirror=OWN.name), state=RunState.DONE, ended_ms=9)
    held.runs[RUN.id] = over
    assert mirror_lookup.list_watched_links([]) == []


def test_a_watched_mirror_brings_the_fence_of_its_way_home_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failback is open, and its way home gave the new primary up."""
    failback = replace(RUN, plan=replace(RUN.plan, mirror=OWN.name, kind=RunKind.FAILBACK))
    there = State(mirrors={OWN.name: OWN}, runs={failback.id: failback})
    back = replace(OWN, name=MirrorName("own-back"), source=OWN.destination, destination=OWN.source)
    fence = replace(LIFTING, mirror=back.name, cluster=OWN.destination, action=FenceAction.APPLY)
    here = State(mirrors={back.name: back}, pending_fences={back.name: fence})
    monkeypatch.setattr(mirror_link, "read_states", lambda config: iter([(WEST, there)]))
    monkeypatch.setattr(mirror_link, "read_state", lambda cluster, timeout_s: here)
    names = {found.mirror.name for found in mirror_lookup.list_watched_links([OWN.name])}
    assert names == {OWN.name, back.name}
    here.pending_fences.clear()
    assert [found.mirror.name for found in mirror_lookup.list_watched_links([OWN.name])] == [OWN.name]


def test_only_a_destination_is_believed_about_a_mirror() -> None:
    assert mirror_lookup.list_started_mirrors() == ["own"]
    assert [found.mirror.name for found in mirror_lookup.list_watched_links([])] == ["own"]


def test_a_cluster_that_does_not_tell_of_its_mirrors_is_red_beside_all_else() -> None:
    """Mirrors towards it are in no list, and nothing else would be red for want of them."""
    with pytest.raises(AirflowException, match=r"not looked at:\n  - south: it does not answer$"):
        operators.CheckClusters(task_id="clusters").execute({"params": {"mirrors": []}})
    operators.CheckClusters(task_id="clusters").execute({"params": {"mirrors": ["own"]}})  # looked for by its name
