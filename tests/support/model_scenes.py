"""What happens to two copiers: what they do, what comes between, and situations that chance brings about too seldom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Move = tuple[str, int]
"""What happens (`tests.support.model_world`), and to which of the two."""
Parts = tuple[tuple[bool, int], ...]
"""A source's log: whether there are records, and how many offsets."""

WORK: Final = ("loop",) * 8 + ("fill",) * 6 + ("patience", "grow", "align")
"""What copiers do."""
FAULTS: Final = ("hold", "refused", "denied", "unheard", "parted", "break", "restart", "drop", "forget")
BETWEEN: Final = ("fetch", "take", "send", "answers", "tick", "nap", "sleep", "turn", "straggle", "carry", *FAULTS)
"""What comes between. Each walk knows some of it only: so it happens often enough to meet."""
STEPS: Final = 120


def _scene(text: str) -> tuple[Move, ...]:
    """Words such as `fill-0*3`: three times, to the first one."""
    found: list[Move] = []
    for word in text.split():
        move, _, times = word.partition("*")
        name, _, who = move.partition("-")
        found += [(name, int(who))] * int(times or 1)
    return tuple(found)


SCENES: Final[Mapping[str, tuple[Move, ...]]] = {
    "none": (),
    "straggler": _scene(
        "grow-0*8 loop-0*4 patience-0 hold-0 fill-0*4 break-0 patience-1 straggle-0*3 fill-1*4 straggle-0 fill-1*4"
    ),
    "refused": _scene("grow-0*8 loop-0*4 patience-0 fill-0*4 refused-0 fetch-0 take-0 fill-0*2"),
    "forgotten": _scene(
        "grow-0*10 align-0*3 fetch-0 take-0 carry-0 answers-0 denied-0 fetch-0 take-0 forget-0 carry-0*3 answers-0"
    ),
    "wide": _scene(
        "grow-0*10 loop-0*4 patience-0 fill-0*6 loop-0*3 loop-1*6 hold-0 fill-0*3 break-0 patience-1 "
        "straggle-0*5 fill-1*6"
    ),
    "two wait": _scene("grow-0*10 loop-0*4 loop-1*4 patience-0 patience-1 fill-1*6 turn-0 fill-0*3"),
    "crowd": _scene("grow-0*10 loop-0*4 patience-0 fill-0*4 align-1*3 loop-1*2 turn-1 fill-1*3 fill-0*2 fill-1*3"),
    "both": _scene(
        "grow-0*10 loop-0 loop-1 loop-0 loop-1 loop-0 loop-1 loop-0 loop-1 fill-0 fill-1 fill-0 fill-1 "
        "sleep-0 fill-0 fill-1 fill-0 fill-1 fill-0 fill-1"
    ),
    "outlived": _scene(
        "grow-0*10 loop-0*4 patience-0 fill-0*6 loop-0*3 loop-1*6 hold-0 fill-0*3 break-0 patience-1 fill-1*8 "
        "straggle-0*5"
    ),
    "late answer": _scene(
        "grow-0*10 align-0*3 fetch-0 take-0 carry-0 answers-0 hold-0 fetch-0 take-0 fetch-0 break-0 drop-0*3 align-0*3 "
        "take-0 patience-0 fill-0*4"
    ),
    "slept": _scene(
        "grow-0*2 loop-0*4 patience-0 fill-0*4 sleep-0 patience-1 fill-1*6 grow-0 fill-0 loop-0*4 fill-0*4"
    ),
    "first refused": _scene("grow-0*10 align-0*3 refused-0 fetch-0 take-0 answers-0"),
    "rested": _scene("grow-0 loop-0*8 sleep-0 forget-0 grow-0*8 refused-0 fetch-0 take-0 answers-0"),
    "comeback": _scene(
        "grow-0*8 loop-0*4 patience-0 hold-0 fill-0*4 break-0 align-0*3 fetch-0 take-0 fill-0*2 straggle-0*3 fill-0*3"
    ),
    "slow marker": _scene(
        "grow-0*8 loop-0*4 loop-1*4 patience-0 fill-0 patience-1 fill-1 carry-1 fill-1 carry-1 fill-1 carry-1 "
        "fill-1 carry-1 fill-1 carry-1 fill-1 carry-0*2 fill-0*2"
    ),
    "parted": _scene("grow-0*8 loop-0*4 patience-0 fill-0*4 parted-0 nap-0 align-0*3 fill-0*3"),
    "short sight": _scene(
        "grow-0*10 loop-0*4 patience-0 fill-0*6 loop-0*3 align-1*3 fetch-1 take-1 hold-0 fill-0*3 break-0 "
        "fill-1*2 sleep-0 turn-1 fill-1*8 straggle-0*6 fill-1*4"
    ),
    "one too many": _scene("grow-0 patience-1 fill-1 patience-0*2 patience-1"),
}
"""What goes before the rest of a walk."""

_RECORDS: Final[Parts] = ((True, 2),) * 5
_GROWS: Final[Parts] = ((False, 2), (True, 2), (False, 2), (False, 2), (True, 1))
_WIDE: Final[Parts] = ((False, 2), (True, 1), *((False, 1),) * 6)
"""Its second gap is longer than one answer shows."""
_RECORD_LAST: Final[Parts] = ((False, 1), (True, 1))
"""As many records behind a gap as there may be markers too many."""
OWN: Final[Mapping[str, Parts]] = {
    "short sight": _WIDE,
    "wide": _WIDE,
    "outlived": _WIDE,
    "forgotten": _RECORDS,
    "first refused": _RECORDS,
    "rested": _RECORDS,
    "late answer": _RECORDS,
    "slept": _GROWS,
    "one too many": _RECORD_LAST,
}
"""Scenes that need a source of their own."""
