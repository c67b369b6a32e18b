"""What each step of a failover does. Each may be repeated after a crash at any point of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from mirror_core.decide.parity import NOTHING_COMPARED
from mirror_core.decide.scope import strayed
from mirror_core.decide.view import some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, known_offsets, list_offsets, list_points
from mirror_core.model.clock import now_ms
from mirror_core.model.drift import Part
from mirror_core.model.errors import Indeterminate, MirrorError, Refused
from mirror_core.model.mirror import Lease
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.model.parity import ParityRange, ParityResult, Verdict
from mirror_core.model.run import Evidence
from mirror_core.model.standing import Debt, Owed
from mirror_core.runbook.checkpoints import Drained, Equal, Fenced, Proven, left_by
from mirror_core.runbook.observe import CALL_S
from mirror_core.runbook.promotion import Promotion, counted, owner
from mirror_core.state.lease import next_lease
from mirror_core.state.records import Forget, Record
from mirror_core.state.writer import StateWriter, data_id
from mirror_core.sync.cycle import sync
from mirror_core.sync.fence import denials_of, raise_fence, undenied
from mirror_core.sync.group_commits import stop_commits

SHOWN: Final = 20
"""Partitions that a refusal names."""
DRAIN_S: Final = 3600.0
"""The drain copies this long at most before the step fails; a resumed run goes on where it was."""


class GateClosed(MirrorError):
    """The two sides differ: nothing is promoted. The findings are in the message and in the parity report."""


class Steps(Promotion):
    """The acts of a planned failover."""

    __slots__ = ()

    def prove(self) -> Evidence:
        """Parity of all that is mirrored so far, while applications still write: keeps the standstill short."""
        with ClusterClient(self.link.destination) as destination:
            positions = list_offsets(destination, self.scope.drained, Point.LOG_END)
        ranges = [ParityRange(partition=p, start=Offset(0), end=end) for p, end in sorted(positions.items()) if end]
        if not ranges:
            self.journal.keep("prove", Proven(ends=Offsets(), records=0))
            return {"verdict": "nothing mirrored yet", "records": 0}
        result = self.services.parity(
            self.link.source.name,
            self.link.destination.name,
            ranges,
            self.services.run_dir(self.journal.run_id) / "prove",
        )
        _open_gate(result, "the proof of what is mirrored so far", earlier_records=0)
        self.journal.keep("prove", Proven(ends=Offsets.of(dict(result.proven)), records=result.records))
        return {
            "verdict": result.verdict,
            "records": result.records,
            "chunks": result.chunks,
            "partitions": len(result.proven),
            "report": result.report,
        }

    def fence(self) -> Evidence:
        """Nobody writes any more what is to be promoted. What was approved still holds, or nobody is held up."""
        self.writer.refresh()  # the proof may have taken hours, in which the data plane has found things out
        self.check_approval("fence", source_needed=True)
        self._refuse_if_strayed()
        owed = self.writer.state.debts.get(self.link.mirror.name)
        if owed is not None:
            self.writer.put(Forget(owed))  # a fence that an earlier run still had to lift
        with ClusterClient(self.link.source) as source:
            fence = raise_fence(self.link, self.writer, source, self.scope.names, self.scope.drained)
        self.journal.keep("fence", Fenced(ends=Offsets.of(fence.ends), authorizer=fence.authorizer))
        return {
            "authorizer": fence.authorizer,
            "denials": len(fence.denials),
            "shown_by_brokers": some(fence.brokers),
            "transactions_waited_for": some(fence.transactions),
            "still_s": fence.still_s,
            "partitions": len(fence.ends),
        }

    def drain(self) -> Evidence:
        """Fence the data plane's driver out of the state topic, then copy up to the source's log ends."""
        with StateWriter(self.link.destination, data_id(self.link.mirror.name)) as data:
            # Its tasks may outlive it until the time that its lease says.
            lease = next_lease(data.state, self.link.mirror.name, owner(self.journal.run_id))
            data.put(lease)
            # Until now the data plane went on, for as long as the proof took: what it found out is read before anything
            # is decided by it, or written over it. From here on nobody else writes about partitions.
            self.writer.refresh()
            self._refuse_if_strayed()
            partitions = self.scope.drained
            with ClusterClient(self.link.source) as source:
                ends = list_offsets(source, partitions, Point.LOG_END)
            started = now_ms()
            # So may we: whoever gives this source up while it hangs must know until when we copy, if it wakes up.
            self.services.copy(self.link)(ends, DRAIN_S, partial(_say_until, data, lease))
            data.put(replace(lease, beat_ms=now_ms()))
        with ClusterClient(self.link.destination) as destination:
            late = stop_commits(self.link.mirror, self.writer, destination)
        positions = self._verify_drained(ends)
        self.journal.keep("drain", Drained(positions=Offsets.of(positions)))
        return {"partitions": len(positions), "copied_ms": now_ms() - started, "late_commits": late}

    def _verify_drained(self, ends: Mapping[Partition, Offset]) -> dict[Partition, Offset]:
        """The source has not moved and every position is its log end, as the brokers say, not the copier."""
        with ClusterClient(self.link.source) as source, ClusterClient(self.link.destination) as destination:
            now = list_offsets(source, ends, Point.LOG_END)
            points = list_points(destination, ends, [Point.LOG_END, Point.HIGH_WATERMARK])
        positions, replicated = points.values()
        name = self.link.source.name
        problems = [f"{p}: log end on {name} went from {ends[p]} to {now[p]}" for p in ends if now[p] != ends[p]]
        problems += [f"{p}: position {positions[p]}, log end {ends[p]}" for p in ends if positions[p] != ends[p]]
        problems += [f"{p}: replicated up to {replicated[p]} of {ends[p]}" for p in ends if replicated[p] < ends[p]]
        if problems:
            raise MirrorError(
                f"mirror {self.link.mirror.name}: not drained: {some(problems)}. "
                "Resume the run to go on copying, or abort it"
            )
        return positions

    def final_sync(self) -> Evidence:
        """Configurations, rights and group offsets. No new topics: what is behind the fence is what was approved."""
        report = sync(
            self.link,
            self.writer,
            only=frozenset({Part.CONFIGS, Part.ACLS, Part.GROUPS}),
            run_id=self.journal.run_id,
        )
        return counted(report.rows)

    def parity(self) -> Evidence:
        """The gate: what was copied since the proof is equal, and so are the logs' ends."""
        proof = left_by(self.journal, "prove", Proven)
        proven = proof.ends.by_partition()
        with ClusterClient(self.link.destination) as destination:
            ends = list_offsets(destination, self.scope.drained, Point.LOG_END)
        ranges = [
            ParityRange(partition=p, start=min(proven.get(p, Offset(0)), end), end=end)
            for p, end in sorted(ends.items())
        ]
        result = self.services.quick_parity(
            self.link.source.name,
            self.link.destination.name,
            ranges,
            self.services.run_dir(self.journal.run_id) / "parity",
        )
        _open_gate(result, "the parity gate", earlier_records=proof.records)
        self.journal.keep("parity", Equal(ends=Offsets.of(ends)))
        return {
            "verdict": Verdict.PASSED,
            "records_since_proof": result.records,
            "records_in_all": result.records + proof.records,
            "partitions": len(ends),
            "report": result.report,
        }

    @property
    def positions(self) -> dict[Partition, Offset]:
        return left_by(self.journal, "drain", Drained).positions.by_partition()

    def standing(self) -> Iterator[Record]:
        fenced = left_by(self.journal, "fence", Fenced)
        yield Debt(
            mirror=self.link.mirror.name,
            cluster=self.link.source.name,
            owed=Owed.FENCE,
            run=self.journal.run_id,
            since_ms=now_ms(),
            paid_ms=now_ms() if fenced.authorizer else None,
            ends=fenced.ends,
            trouble="" if fenced.authorizer else f"cluster {self.link.source.name} has no authorizer",
        )

    def check_before_promotion(self) -> None:
        """Refused when what was approved holds no more, or the source was written behind the fence.

        Asked while an abort is still possible. A fenced source that has died since it was drained and compared forbids
        nothing: what it had acknowledged is on the destination.
        """
        if self.check_approval("promotion", source_needed=False):
            self._refuse_if_written()
        elif not left_by(self.journal, "fence", Fenced).authorizer:
            name = self.link.source.name
            raise Refused(
                f"run {self.journal.run_id}: promotion",
                [
                    f"{name} does not answer and could not be fenced, so nobody knows what it took after it was "
                    f"drained. If it is lost: `mirrorbook failover run {self.link.mirror.name} --mode unplanned` goes "
                    "on from here, and says what may be missing"
                ],
            )

    def _refuse_if_written(self) -> None:
        """A super user, somebody who took the denials away, an authorizer that is gone: all show in the log ends."""
        positions = self.positions
        with ClusterClient(self.link.source, timeout_s=CALL_S) as source:
            authorizer = left_by(self.journal, "fence", Fenced).authorizer
            reasons = undenied(source, denials_of(self.scope.names)) if authorizer else []
            ends = known_offsets(source, positions, Point.LOG_END)
        name = self.link.source.name
        reasons += [
            f"{p} on {name}: log end {ends[p]}, drained up to {positions[p]}" for p in ends if ends[p] != positions[p]
        ]
        if reasons:
            raise Refused(
                f"run {self.journal.run_id}: promotion, since {name} was not kept from writes; abort this run, find "
                "who writes there, and plan again",
                reasons[:SHOWN],
            )

    def _refuse_if_strayed(self) -> None:
        reasons = tuple(strayed(self.scope, self.statuses()))
        if reasons:
            raise Refused(f"run {self.journal.run_id}: abort it and plan again", reasons[:SHOWN])


def _say_until(data: StateWriter, lease: Lease, until_ms: int) -> None:
    """For how long this process may write. LostOwnership when somebody else has the data plane by now."""
    data.put(replace(lease, beat_ms=now_ms(), writers_until_ms=max(lease.writers_until_ms, until_ms)))


def _open_gate(result: ParityResult, what: str, *, earlier_records: int) -> None:
    """Return only if equal. An empty rest is fine after a proof that had something to compare."""
    if result.verdict is Verdict.PASSED:
        return
    if result.findings or result.verdict is Verdict.FAILED:
        shown = "; ".join(f"{f.partition} offset {f.offset}: {f.kind}: {f.detail}" for f in result.findings[:10])
        raise GateClosed(
            f"{what} failed, {len(result.findings)} difference(s): {shown}. Report: {result.report or 'none'}"
        )
    if earlier_records and set(result.reasons) <= {NOTHING_COMPARED}:
        return
    raise Indeterminate(f"{what} is indeterminate, so it stays closed: {'; '.join(result.reasons[:10])}")
