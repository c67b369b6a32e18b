"""What the last look at a source forbids before a planned promotion."""

from __future__ import annotations

import pytest

from mirror_core.decide.source_probe import SourceReply, explain_doubt, find_contradictions
from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition
from tests.support.sentences import format_sentence

EAST, NAME, P, Q = ClusterName("east"), MirrorName("m"), Partition("t", 0), Partition("t", 1)
DRAINED = {P: Offset(7), Q: Offset(9)}


@pytest.mark.parametrize(
    ("said", "reasons"),
    [
        (SourceReply(log_ends=DRAINED), []),
        (SourceReply(log_ends={P: Offset(7)}), []),
        (SourceReply(silent_because="no answer"), []),
        (SourceReply(log_ends={P: Offset(8)}), ["t-0 on east: log end 8, drained up to 7"]),
        (SourceReply(log_ends={Q: Offset(8)}), ["t-1 on east: log end 8, drained up to 9"]),
        (SourceReply(unfenced_brokers=("broker 1 does not show it",)), ["broker 1 does not show it"]),
        (SourceReply(other_cluster_id="xyz"), ["the address of east leads to cluster xyz now"]),
    ],
)
def test_a_source_that_did_not_stand_still_since_it_was_drained_is_found_by_what_it_says(
    said: SourceReply, reasons: list[str]
) -> None:
    assert list(find_contradictions(said, EAST, DRAINED)) == reasons


@pytest.mark.parametrize(
    ("said", "held", "file", "why"),
    [
        (SourceReply(log_ends=DRAINED), False, False, ""),
        (SourceReply(silent_because="no answer"), True, True, ""),
        (
            SourceReply(silent_because="no answer"),
            True,
            False,
            format_sentence("fence_file_absent_while_source_silent"),
        ),
        (SourceReply(silent_because="no answer"), False, True, "does not answer and could not be fenced"),
        (SourceReply(unknowns=("broker 2: no",)), True, True, ""),
        (SourceReply(unknowns=("broker 2: no",)), True, False, "answers only in part (broker 2: no) and the file"),
        (SourceReply(other_cluster_id="xyz"), True, False, "the file that tells"),
    ],
)
def test_what_a_source_does_not_say_is_known_only_by_the_file_of_a_fence_that_held(
    said: SourceReply, held: bool, file: bool, why: str
) -> None:
    found = explain_doubt(said, EAST, NAME, fence_held=held, has_fence_file=file)
    assert (why in found) if why else found == ""
    assert not found or "--mode unplanned` goes on from here" in found
