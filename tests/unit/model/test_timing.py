"""How long a silent cluster is waited for: one factor for all of it, which only tests set."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from mirror_core.model.timing import (
    MAX_FRESH_AGE_S,
    SCALE_FACTOR,
    SCALE_VARIABLE,
    TIMEOUTS,
    Timeouts,
    parse_scale_factor,
)


def test_a_factor_scales_every_limit_and_none_is_missing() -> None:
    plain, scaled = asdict(Timeouts()), asdict(Timeouts.scaled(2.5))
    assert all(seconds > 0 for seconds in plain.values())
    assert scaled == {name: 2.5 * seconds for name, seconds in plain.items()}
    assert Timeouts.scaled(1.0) == Timeouts()
    assert Timeouts.scaled(SCALE_FACTOR) == TIMEOUTS


def test_what_is_promised_of_plans_is_kept_by_the_limits_as_shipped() -> None:
    """A plan is there within 5 s: a side gets 4 s, and its state topic is read before."""
    shipped = Timeouts()
    assert (shipped.plan_cluster_idle_s, shipped.plan_response_s, shipped.plan_state_s) == (4.0, 2.5, 3.0)
    within = (shipped.plan_groups_s, shipped.plan_heartbeats_s, shipped.new_leader_s, shipped.plan_response_s)
    assert max(within) < shipped.plan_cluster_idle_s
    assert shipped.plan_state_s + shipped.plan_cluster_idle_s < MAX_FRESH_AGE_S, (
        "a lease that was read before still counts then"
    )


@pytest.mark.parametrize(("value", "factor"), [("1", 1.0), ("3", 3.0), ("0.5", 0.5), (" 2 ", 2.0)])
def test_a_positive_number_is_taken(value: str, factor: float) -> None:
    assert parse_scale_factor(value) == factor


@pytest.mark.parametrize("value", ["", "much", "0", "-1", "nan", "inf", "3 s", "1,5"])
def test_anything_else_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=rf"MIRRORBOOK_PATIENCE is '{value}': it must be a positive number"):
        parse_scale_factor(value)


def shown(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    code = "from mirror_core.model.timing import TIMEOUTS; print(TIMEOUTS.plan_cluster_idle_s)"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_process_has_the_factor_of_its_environment_and_1_without() -> None:
    environment = {name: value for name, value in os.environ.items() if name != SCALE_VARIABLE}
    assert shown(environment).stdout == "4.0\n"
    assert shown({**environment, SCALE_VARIABLE: "3"}).stdout == "12.0\n"
    refused = shown({**environment, SCALE_VARIABLE: "soon"})
    assert refused.returncode == 1
    assert "MIRRORBOOK_PATIENCE is 'soon': it must be a positive number, such as 3" in refused.stderr
