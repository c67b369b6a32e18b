"""Buttons: each leads to a DAG, or is grey and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mirrorbook_airflow.page.buttons import (
    FAILBACK,
    FAILOVER,
    MIRROR_BUTTON_LABELS,
    UNPLANNED,
    choose_deciding_dag,
    list_mirror_buttons,
    list_own_dags,
)

from mirror_core.decide.failover_readiness import UnplannedForecast
from mirror_core.decide.process_liveness import UNKNOWN_CONDUCTOR
from mirror_core.model.findings import Finding
from mirror_core.model.json_documents import to_finding_documents
from mirror_core.model.mirror import (
    DesiredState,
)
from mirror_core.model.names import MirrorName
from mirror_core.model.run import RunKind
from mirror_core.page.mirror_page import select_valid
from tests.support.page_views import (
    MIRROR,
    NOW,
    judged,
    run,
    told,
)


def grey(**known: object) -> dict[str, str]:
    rights = {FAILBACK: "viewer may not", **dict.fromkeys(MIRROR_BUTTON_LABELS.keys() - {FAILBACK}, "")}
    found = list_mirror_buttons(rights, **known, conductor=UNKNOWN_CONDUCTOR)  # type: ignore[arg-type]
    return {action.dag: action.disabled_reason for action in found if action.disabled_reason}


def test_a_button_is_grey_by_the_users_rights_or_by_the_cores_reasons() -> None:
    assert grey(assessment=None, run=None) == {FAILBACK: "viewer may not"}
    assert grey(assessment=judged("not caught up"), run=None)[FAILOVER] == "not caught up"


def test_a_button_leads_to_the_mirrors_own_dag_where_there_is_one() -> None:
    """And by the rights for that one."""
    possible = list_own_dags(MirrorName("orders-back"))
    assert possible[FAILOVER] == "mirror_failover.orders-back"
    assert possible["mirror_sync"] == "mirror_sync.orders", "which syncs its way home, too"
    denied = {**dict.fromkeys(MIRROR_BUTTON_LABELS, "viewer may not"), possible[FAILOVER]: ""}
    own = {FAILOVER: possible[FAILOVER]}
    found = {button.dag: button for button in list_mirror_buttons(denied, None, None, UNKNOWN_CONDUCTOR, own)}
    assert (found[FAILOVER].dag_id, found[FAILOVER].disabled_reason) == ("mirror_failover.orders-back", "")
    assert (found[FAILBACK].dag_id, found[FAILBACK].disabled_reason) == (FAILBACK, "viewer may not")


@pytest.mark.parametrize(
    ("mirror", "existing", "dag"),
    [
        ("orders", [], FAILOVER),
        ("orders", ["mirror_failover.bills", "mirror_sync.orders", "mirror_failover_set.orders"], FAILOVER),
        ("orders", ["mirror_failover.orders", FAILOVER], "mirror_failover.orders"),
        ("orders-back", ["mirror_failover.orders"], "mirror_failover.orders"),
        ("orders-back", ["mirror_failover.orders-back", "mirror_failover.orders"], "mirror_failover.orders-back"),
    ],
)
def test_a_mirror_is_seen_by_the_rights_on_its_own_dag_where_there_is_one(
    mirror: str, existing: list[str], dag: str
) -> None:
    assert choose_deciding_dag(MirrorName(mirror), existing) == dag


def test_a_failover_without_the_source_is_grey_with_the_reason_why_it_would_be_refused() -> None:
    refused = replace(
        judged(),
        unplanned=UnplannedForecast(
            refused=to_finding_documents([Finding("west is silent"), Finding("it is stopped")])
        ),
    )
    assert grey(assessment=refused, run=None)[UNPLANNED] == "west is silent (and 1 more)"
    assert grey(assessment=refused, run=run())[UNPLANNED] == "west is silent (and 1 more)", (
        "nor would it go on from there"
    )
    for other in (
        judged("not caught up"),
        replace(judged("the source is dead"), unplanned=UnplannedForecast(refused=())),
    ):
        assert UNPLANNED not in grey(assessment=other, run=None)


def test_no_button_is_grey_by_a_judgement_that_holds_no_longer() -> None:
    one, ended = told(), told(run(ended_ms=NOW - 4_000))
    refused = replace(
        judged(),
        unplanned=UnplannedForecast(refused=to_finding_documents([Finding("it is stopped")])),
        desired=MIRROR.desired,
    )
    assert select_valid(refused, one, MIRROR, NOW) == refused
    assert select_valid(refused, one, MIRROR, NOW + 120_000) is None, "too old"
    assert select_valid(refused, ended, MIRROR, NOW) is None, "a run has ended since"
    assert select_valid(refused, one, replace(MIRROR, desired=DesiredState.PAUSED), NOW) is None
    assert select_valid(None, one, MIRROR, NOW) is None


def test_a_planned_run_leaves_the_source_to_be_given_up_and_a_failback_does_not() -> None:
    assert grey(assessment=None, run=run()).keys() == {FAILOVER, FAILBACK}
    assert grey(assessment=None, run=run(kind=RunKind.FAILBACK)).keys() == {FAILOVER, FAILBACK, UNPLANNED}
