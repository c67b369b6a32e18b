"""Two mirrors go there and home again in any order, killed anywhere: each opens its own topic only, to those due."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror_core.model.acl import Operation
from tests.support.acl_model import APPS, TOPICS, Killed, World, administer, in_memory, right
from tests.support.random_seeds import seed_of

ACTIONS = ["grant", "revoke", "deny", "undeny", "prefix"]
CHANGES = [Operation.ALL, Operation.WRITE, Operation.DELETE]
administering = st.tuples(
    st.sampled_from(ACTIONS), st.sampled_from([*TOPICS]), st.sampled_from(APPS), st.sampled_from(CHANGES)
)
steps = st.tuples(st.sampled_from([*TOPICS]), st.sampled_from([1, 2, 6, 13]), st.integers(0, 6))
"""Of which mirror, how many in a row (13 go there and home again), and at which write the last one is killed."""
histories = st.lists(st.one_of(administering, steps, steps, st.sampled_from([*TOPICS])), min_size=6, max_size=30)

ROUND = 12
"""Steps that lead there and home again, after the first sync."""


def new_world(folder: Path) -> World:
    world = World(folder)
    world.held["east"] |= {right(topic, "User:one", Operation.WRITE) for topic in TOPICS.values()}
    return world


@settings(max_examples=300)
@given(history=histories)
def test_no_mirror_opens_or_closes_what_is_not_its_own_nor_gives_back_what_was_withdrawn(
    history: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = new_world(tmp_path_factory.mktemp("world"))
    with in_memory(world):
        for event in history:
            match event:
                case (action, name, user, operation):
                    administer(world, name, user, action, operation)
                case (name, count, kill_in):
                    for left in reversed(range(count)):
                        step(world, name, 0 if left else kill_in)
                case name:
                    world.routes[name].sync_now()
            world.check()


@pytest.mark.parametrize("number", range(24))
def test_both_go_there_and_home_again_twice_while_rights_are_revoked_in_between(tmp_path: Path, number: int) -> None:
    """Each mirror makes both round trips, in whatever order their steps come; chance decides what comes between."""
    chance = random.Random(seed_of(f"two round trips {number}"))
    world = new_world(tmp_path)
    with in_memory(world):
        while unfinished := [name for name, route in world.routes.items() if route.taken < 1 + 2 * ROUND]:
            match chance.choice(["step", "step", "step", "administer", "sync"]):
                case "step":
                    step(world, chance.choice(unfinished), chance.choice([0, 0, chance.randint(1, 6)]))
                case "administer":
                    action = chance.choice(["revoke", "revoke", *ACTIONS])
                    administer(world, chance.choice([*TOPICS]), chance.choice(APPS), action, chance.choice(CHANGES))
                case "sync":
                    world.routes[chance.choice([*TOPICS])].sync_now()
            world.check()
        assert {route.active for route in world.routes.values()} == {"east"}


def test_a_right_given_on_the_other_side_and_revoked_at_home_is_not_given_there_again(tmp_path: Path) -> None:
    """It went home with the applications, and was revoked before the mirror began again: no sync has ever staged it."""
    world = new_world(tmp_path)
    with in_memory(world):
        for _ in range(ROUND // 2):
            step(world, "m", 0)
        administer(world, "m", "User:two", "grant", Operation.WRITE)
        for _ in range(ROUND // 2):
            step(world, "m", 0)
        assert ("User:two", Operation.WRITE) in world.open_to("east", TOPICS["m"])
        administer(world, "m", "User:two", "revoke", Operation.WRITE)
        for _ in range(ROUND // 2):
            step(world, "m", 0)
        assert world.routes["m"].active == "west"
        assert world.open_to("west", TOPICS["m"]) == {("User:one", Operation.WRITE)}


def step(world: World, name: str, kill_in: int) -> None:
    """The next one of a mirror; killed at which of its writes (0: at none), which is what the next call begins with."""
    world.kill_in = kill_in
    with suppress(Killed):
        world.routes[name].step()
    world.kill_in = 0
