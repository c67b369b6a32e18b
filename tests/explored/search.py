"""Breadth first over all that can happen, so that the first history that breaks an invariant is a shortest one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.explored.canonical import canonical
from tests.explored.limits import Limits, Move
from tests.explored.moves import moves
from tests.explored.world import World

CheckMove = Callable[[World, Move], Iterable[str]]
CheckWorld = Callable[[World], Iterable[str]]
"""What is wrong."""


@dataclass
class Explored:
    """What was seen."""

    worlds: list[World] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    parents: list[tuple[int, str]] = field(default_factory=list)
    good: list[list[int]] = field(default_factory=list)
    """By world: those from which it is reached without bad luck."""
    edge: set[int] = field(default_factory=set)
    """Worlds of which nobody looked what comes next."""
    moves: int = 0

    def path(self, at: int) -> list[str]:
        labels = list[str]()
        while at:
            at, label = self.parents[at]
            labels.append(label)
        return labels[::-1]


class Violated(AssertionError):
    """With the shortest path to it."""


def explore(
    start: World,
    limits: Limits,
    check_move: CheckMove,
    check_world: CheckWorld,
    *,
    depth: int = 10**9,
    most: int = 10**9,
) -> Explored:
    """Raises Violated at the first world, or move, with which something is wrong."""
    found = Explored()
    start = canonical(start)
    known = {start: 0}
    found.worlds.append(start)
    found.depths.append(0)
    found.parents.append((0, ""))
    found.good.append([])
    queue = deque([0])
    while queue:
        at = queue.popleft()
        if found.depths[at] >= depth or len(found.worlds) > most:
            found.edge.add(at)
            continue
        world = found.worlds[at]
        for move in moves(world, limits):
            found.moves += 1
            after = canonical(move.world)
            number = known.get(after)
            wrong = next(iter(check_move(world, move)), "")
            if number is None:
                number = known[after] = len(found.worlds)
                found.worlds.append(after)
                found.depths.append(found.depths[at] + 1)
                found.parents.append((at, move.label))
                found.good.append([])
                queue.append(number)
                wrong = wrong or next(iter(check_world(after)), "")
            if move.good and number != at:
                found.good[number].append(at)
            if wrong:
                path = [*found.path(at), move.label]
                shown = "\n".join(f"  {n}. {label}" for n, label in enumerate(path, 1))
                raise Violated(f"{wrong}, after {len(path)} acts:\n{shown}\n{after}")
    return found


def stuck(found: Explored, safe: Callable[[World], bool]) -> list[int]:
    """Worlds from which no documented command leads to a safe one. Those at the edge are not judged."""
    reach = {n for n, world in enumerate(found.worlds) if safe(world)} | found.edge
    queue = deque(reach)
    while queue:
        for before in found.good[queue.popleft()]:
            if before not in reach:
                reach.add(before)
                queue.append(before)
    return [n for n in range(len(found.worlds)) if n not in reach]
