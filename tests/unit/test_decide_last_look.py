"""What the last look at a source forbids before a planned promotion."""

from __future__ import annotations

import pytest

from mirror_core.decide.last_look import Said, contradicted, in_doubt
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition

EAST, NAME, P, Q = ClusterName("east"), MirrorName("m"), Partition("t", 0), Partition("t", 1)
DRAINED = {P: Offset(7), Q: Offset(9)}


@pytest.mark.parametrize(
    ("said", "reasons"),
    [
        (Said(ends=DRAINED), []),
        (Said(ends={P: Offset(7)}), []),
        (Said(silent="no answer"), []),
        (Said(ends={P: Offset(8)}), ["t-0 on east: log end 8, drained up to 7"]),
        (Said(ends={Q: Offset(8)}), ["t-1 on east: log end 8, drained up to 9"]),
        (Said(bare=("broker 1 does not show it",)), ["broker 1 does not show it"]),
        (Said(elsewhere="xyz"), ["the address of east leads to cluster xyz now"]),
    ],
)
def test_a_source_that_did_not_stand_still_since_it_was_drained_is_found_by_what_it_says(
    said: Said, reasons: list[str]
) -> None:
    assert list(contradicted(said, EAST, DRAINED)) == reasons


@pytest.mark.parametrize(
    ("said", "held", "file", "why"),
    [
        (Said(ends=DRAINED), False, False, ""),
        (Said(silent="no answer"), True, True, ""),
        (Said(silent="no answer"), True, False, "does not answer and the file that tells whether its fence stood is"),
        (Said(silent="no answer"), False, True, "does not answer and could not be fenced"),
        (Said(unsaid=("broker 2: no",)), True, True, ""),
        (Said(unsaid=("broker 2: no",)), True, False, "answers only in part (broker 2: no) and the file"),
        (Said(elsewhere="xyz"), True, False, "the file that tells"),
    ],
)
def test_what_a_source_does_not_say_is_known_only_by_the_file_of_a_fence_that_held(
    said: Said, held: bool, file: bool, why: str
) -> None:
    found = in_doubt(said, EAST, NAME, held=held, file=file)
    assert (why in found) if why else found == ""
    assert not found or "--mode unplanned` goes on from here" in found
