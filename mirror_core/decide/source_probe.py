"""What the last probe of the source forbids before promotion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mirror_core.model.names import ClusterName, MirrorName, Offset, Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReply:
    """One broker that hangs, or may not be asked, hides no other."""

    silent_because: str = ""
    other_cluster_id: str = ""
    """It answers at the source's address."""
    unfenced_brokers: tuple[str, ...] = ()
    unknowns: tuple[str, ...] = ()
    fenced_broker_count: int = 0
    is_fenced: bool = False
    log_ends: Mapping[Partition, Offset] = field(default_factory=dict)

    @property
    def has_answered(self) -> bool:
        return not self.silent_because and not self.other_cluster_id

    @property
    def is_complete(self) -> bool:
        return self.has_answered and not self.unknowns

    @property
    def text(self) -> str:
        if self.other_cluster_id:
            return f"silent: its address leads to cluster {self.other_cluster_id}"
        if self.silent_because:
            return f"silent: {self.silent_because}"
        return f"seen in part: {'; '.join(self.unknowns)}" if self.unknowns else "seen"


def find_contradictions(reply: SourceReply, source: ClusterName, drained: Mapping[Partition, Offset]) -> Iterator[str]:
    if reply.other_cluster_id:
        yield f"the address of {source} leads to cluster {reply.other_cluster_id} now"
    yield from reply.unfenced_brokers
    for partition, end in sorted(reply.log_ends.items()):
        if end != drained[partition]:
            yield f"{partition} on {source}: log end {end}, drained up to {drained[partition]}"


def explain_doubt(
    reply: SourceReply, source: ClusterName, mirror: MirrorName, *, fence_held: bool, has_fence_file: bool
) -> str:
    """Empty: what the source accepted is known.

    An unseen source accepted nothing since the drain only if its fence held all the time: it held at the drain
    (`fence_held`), and its file, which is here (`has_fence_file`), was never used to lift it.
    """
    if reply.is_complete or (fence_held and has_fence_file):
        return ""
    reason = "the file that tells whether its fence stood is not here" if fence_held else "could not be fenced"
    silence_text = "does not answer" if reply.silent_because else f"answers only in part ({'; '.join(reply.unknowns)})"
    return (
        f"{source} {silence_text} and {reason}, so nobody knows what it took after it was drained. If it is lost:"
        f" `mirrorbook failover run {mirror} --mode unplanned` goes on from here, and says what may be missing"
    )


def needs_confirmation(*, has_answered: bool, fence_held: bool, was_silent: bool, was_stalled: bool) -> bool:
    """A person must confirm to leave records on a source that answers (`has_answered`).

    Yes if it was silent when the plan was approved (`was_silent`), and if the run stood still while the source may have
    taken writes (`was_stalled`), unless its fence held all the time.
    """
    return has_answered and (was_silent or (was_stalled and not fence_held))


def format_ways_on(mirror: MirrorName, source: ClusterName) -> str:
    return (
        f"`mirrorbook failover abort {mirror}`: applications go on writing on {source}, and nothing is lost. Or "
        f"`mirrorbook failover resume {mirror} --leave-behind`: these records stay on {source} only, until a failback "
        "saves them"
    )


def format_ways_on_unfenced(mirror: MirrorName, source: ClusterName, reason: str) -> str:
    """Its brokers may be unreachable for everybody, so there is also a way without fencing it."""
    return (
        f"{source} answers now and could not be fenced, so both clusters would take writes ({reason}). Stop its brokers"
        f" and `mirrorbook failover resume {mirror}`. Or `mirrorbook failover abort {mirror}`, and plan again. Or keep"
        f" its applications stopped and `mirrorbook failover resume {mirror} --leave-behind`: the run promotes beside"
        f" {source}, and the fence stays pending"
    )


def format_waiting_run(mirror: MirrorName, source: ClusterName) -> str:
    """It is kept while its source is silent again: a new run would not ask."""
    return (
        f"kept: {source} answered when the run was about to promote, and it is silent now. `mirrorbook failover resume "
        f"{mirror} --leave-behind` goes on, and so does action leave_behind of DAG mirror_control: what was not copied "
        f"stays on {source} only. If {source} comes back, `mirrorbook failover abort {mirror}`, or action abort of DAG "
        "mirror_control, loses nothing"
    )


def format_planned_failover_hint(source: ClusterName) -> str:
    return (
        f"{source} answers: a planned failover copies the rest first. Or plan the unplanned one again: its plan says "
        f"that {source} answers, and who approves it leaves behind what is not copied"
    )
