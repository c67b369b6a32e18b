"""What each step of a failover does. Each may be repeated after a crash at any point of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from mirror_core.decide.failover import changed_since, decide
from mirror_core.decide.parity import NOTHING_COMPARED
from mirror_core.decide.view import SourceView, healthy, some
from mirror_core.evidence.run_report import write_run_report
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.model.clock import now_ms
from mirror_core.model.drift import Deed, DriftRow, Part
from mirror_core.model.errors import Indeterminate, MirrorError, Refused
from mirror_core.model.mirror import Desired, Mirror, PartitionState, PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.parity import ParityRange, ParityResult, Verdict
from mirror_core.model.run import Evidence
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.canary import run_canary
from mirror_core.runbook.checkpoints import Drained, Equal, Fenced, Offsets, Proven, all_left, left_by
from mirror_core.runbook.observe import observe
from mirror_core.state.lease import next_lease
from mirror_core.state.records import PartitionRecord, Record
from mirror_core.state.table import Event, after
from mirror_core.state.writer import StateWriter, data_id
from mirror_core.sync.access import apply_promotion
from mirror_core.sync.cycle import sync
from mirror_core.sync.fence import raise_fence

DRAIN_S: Final = 3600.0
"""The drain copies this long at most before the step fails; a resumed run goes on where it was."""


class GateClosed(MirrorError):
    """The two sides differ: nothing is promoted. The findings are in the message and in the parity report."""


class Steps(Acts):
    """The acts of a failover."""

    __slots__ = ()

    def prove(self) -> Evidence:
        """Parity of all that is mirrored so far, while applications still write: keeps the standstill short."""
        with ClusterClient(self.link.destination) as destination:
            positions = list_offsets(destination, self._drained_partitions(), Point.LOG_END)
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
        with ClusterClient(self.link.source) as source:
            fence = raise_fence(self.link.mirror, self.writer, source, self._drained_partitions())
        self.journal.keep("fence", Fenced(ends=Offsets.of(fence.ends)))
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
            # Its tasks may outlive it until the time that its lease says; ours end with this process.
            data.put(next_lease(data.state, self.link.mirror.name, owner(self.journal.run_id)))
            # Until now the data plane went on, for as long as the proof took: what it found out is read before anything
            # is decided by it, or written over it. From here on nobody else writes about partitions.
            self.writer.refresh()
            partitions = self._drained_partitions()
            with ClusterClient(self.link.source) as source:
                ends = list_offsets(source, partitions, Point.LOG_END)
            started = now_ms()
            self.services.copy(self.link)(ends, DRAIN_S)
        positions = self._verify_drained(ends)
        self.journal.keep("drain", Drained(positions=Offsets.of(positions)))
        return {"partitions": len(positions), "copied_ms": now_ms() - started}

    def _verify_drained(self, ends: Mapping[Partition, Offset]) -> dict[Partition, Offset]:
        """The source has not moved and every position is its log end, as the brokers say, not the copier."""
        with ClusterClient(self.link.source) as source, ClusterClient(self.link.destination) as destination:
            now = list_offsets(source, ends, Point.LOG_END)
            positions = list_offsets(destination, ends, Point.LOG_END)
            replicated = list_offsets(destination, ends, Point.HIGH_WATERMARK)
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
        return _counted(report.rows)

    def parity(self) -> Evidence:
        """The gate: what was copied since the proof is equal, and so are the logs' ends."""
        proof = left_by(self.journal, "prove", Proven)
        proven = proof.ends.by_partition()
        with ClusterClient(self.link.destination) as destination:
            ends = list_offsets(destination, self._drained_partitions(), Point.LOG_END)
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

    def record_lmo(self) -> Evidence:
        """All partitions STOPPED at once, with the destination's log end as last mirrored offset."""
        statuses = self.statuses()
        with ClusterClient(self.link.destination) as destination:
            ends = list_offsets(destination, statuses, Point.LOG_END)
        mirror = self.writer.state.mirrors[self.link.mirror.name]
        self.writer.put(*stopped(mirror, statuses, ends))
        return {"partitions": sum(s.lmo is not None for s in self.statuses().values())}

    def check_approval(self) -> None:
        """Refused when what was approved holds no more; asked before promotion begins, while an abort is possible."""
        approved = self.journal.run.plan
        view = observe(self.link, self.writer.state, approved.mode)
        seen = isinstance(view.source, SourceView)
        changed = changed_since(approved.bound, decide(view).plan.bound, source_seen=seen)
        if changed:
            raise Refused(
                f"run {self.journal.run_id}: promotion, since what was approved (hash {approved.hash}) holds no more; "
                "abort this run and plan again",
                changed,
            )

    def promote(self) -> Evidence:
        """The point of no return: applications may write."""
        return _counted(apply_promotion(self.link, self.writer, {p.topic for p in self.statuses()}))

    def canary(self) -> Evidence:
        return run_canary(self.link.destination, f"run {self.journal.run_id}")

    def report(self) -> Evidence:
        steps = [r for r in (self.journal.record(name) for name in self.journal.steps) if r and r.step != "report"]
        folder, left = self.services.run_dir(self.journal.run_id), all_left(self.journal)
        return {"report": str(write_run_report(folder, self.journal.run, steps, self.statuses(), left))}

    def _drained_partitions(self) -> tuple[Partition, ...]:
        """Healthy partitions whose topic the source still has."""
        partitions = healthy(self.statuses())
        with ClusterClient(self.link.source) as source:
            present = source.metadata({p.topic for p in partitions}).topics
        return tuple(p for p in partitions if p.topic in present)


def owner(run_id: str) -> str:
    """The lease's owner while a run keeps the data plane to itself."""
    return f"run:{run_id}"


def stopped(
    mirror: Mirror, statuses: Mapping[Partition, PartitionStatus], ends: Mapping[Partition, Offset]
) -> Iterator[Record]:
    """The mirror and those of its partitions that are not so yet, STOPPED at these last mirrored offsets."""
    yield replace(mirror, desired=Desired.STOPPED)
    for partition, status in statuses.items():
        if status.state is not PartitionState.STOPPED:
            events = () if status.state is PartitionState.STOPPING else (Event.STOP,)
            state = after(status.state, *events, Event.LMO_RECORDED)
            yield PartitionRecord(mirror.name, replace(status, state=state, lmo=ends[partition]))


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


def _counted(rows: tuple[DriftRow, ...] | list[DriftRow]) -> Evidence:
    """How many rows of each deed, and the first ones that could not be done, in words."""
    counts = {f"{deed}": sum(r.deed is deed for r in rows) for deed in Deed}
    skipped = [f"{r.part} {r.subject}: {r.reason}" for r in rows if r.deed in (Deed.SKIP, Deed.REFUSE)]
    return {**{k: v for k, v in counts.items() if v}, "not_done": some(skipped) or "none"}
