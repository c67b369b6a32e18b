"""The steps of a planned failover. Each may be repeated after a crash at any point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from mirror_core.decide.evidence import NONE, NOT_COMPARED
from mirror_core.decide.reckoning import lost_behind_fence, unseen_behind_fence, with_left
from mirror_core.decide.scope import strayed
from mirror_core.decide.view import healthy, some
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.mirrors.proving import compare_rest, with_differences
from mirror_core.model.acl import AclPurpose
from mirror_core.model.clock import now_ms
from mirror_core.model.drift import Part
from mirror_core.model.errors import Refused, RemoteFault
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.model.parity import ParityRange, ParityResult
from mirror_core.model.run import Evidence
from mirror_core.model.standing import Debt, Owed
from mirror_core.parity.so_far import SoFar
from mirror_core.runbook.checkpoints import Drained, Equal, Fenced, LeftBehind, Proven, Resumes, left_by
from mirror_core.runbook.comparing import Round, open_gate, telling
from mirror_core.runbook.drained import keep_deletions, say_until, telling_rounds, verify_drained
from mirror_core.runbook.insisting import insisting
from mirror_core.runbook.last_look import Look, look_again
from mirror_core.runbook.leaderless import in_evidence, not_compared, outwait_tasks, standing_at, take_back
from mirror_core.runbook.promotion import Promotion, counted
from mirror_core.runbook.raised_again import (
    lost_while_lifted,
    paid_again,
    refuse_if_lifted,
    refuse_if_unfenced,
    refuse_in_doubt,
    shut_again,
    uncontradicted,
)
from mirror_core.runbook.rest import MANY, ROUNDS, SHRINKS, Rest, refuse_above, rest_of
from mirror_core.runbook.services import ParityCheck
from mirror_core.runbook.shutting import ByCommand
from mirror_core.runbook.unfencing import FILE, LiftFile
from mirror_core.state.journal import checkpoint
from mirror_core.state.records import Forget, Record
from mirror_core.sync.closings import Shut, has_shut
from mirror_core.sync.cycle import sync
from mirror_core.sync.fence import EVERY_ID, denials_of, raise_fence
from mirror_core.sync.group_commits import stop_commits
from mirror_core.sync.groups import resumes
from mirror_core.sync.ledger import entered

SHOWN: Final = 20
ONLY_AWAITED: Final = f"transactional id {EVERY_ID}: a denial of it would deny every id, so it was only waited for"
DRAIN_S: Final = 3600.0


class Steps(Promotion):
    __slots__ = ()

    def prove(self) -> Evidence:
        """Compare what is mirrored while applications write: keeps the write block short."""
        ranges = self._ranges()
        if not ranges:
            self.journal.keep("prove", Proven(ends=Offsets(), records=0))
            return {"verdict": "nothing mirrored yet", "records": 0}
        first = self._prove_once(ranges, self.services.parity, "prove")
        rounds: list[Round] = []
        try:
            rounds, rest = self._prove_rest(self._rest(first.ends, first.per_second), "prove")
            left = str(rest)
        except RemoteFault as error:  # results are kept; estimated again before the fence
            left = f"not known: {error}"
        return {
            "verdict": first.verdict,
            "records": first.records + sum(one.records for one in rounds),
            "records_proved_before": first.records_before,
            "chunks": first.chunks + sum(one.chunks for one in rounds),
            "partitions": len(first.ends),
            "report": first.report,
            "rounds": 1 + len(rounds),
            "left_for_the_gate": left,
        }

    def close_in(self, limit_s: float | None) -> Rest | None:
        """Compare what came since `prove`, before the fence.

        Refused if the gate would still exceed `limit_s`. None if a fence may already stand: then nothing is waited
        for.
        """
        if self._may_stand():
            return None
        self.services.ready_gate(self.journal.run_id)  # not during the write block
        while True:
            try:
                take_back(self, self.scope)
                proven = left_by(self.journal, "prove", Proven).ends.by_partition()
                rest = self._rest(proven, None)
            except RemoteFault:
                self.check_approval("fence", source_needed=True)  # names the ways on
                raise
            if not rest.is_little or (limit_s is not None and rest.seconds > limit_s):
                _, rest = self._prove_rest(rest, "close-in")
            if not take_back(self, self.scope):  # may have changed meanwhile
                break
        refuse_above(rest, limit_s, self.journal.run_id, self.link.mirror.name)
        return rest

    def _prove_rest(self, rest: Rest, folder: str) -> tuple[list[Round], Rest]:
        rounds = list[Round]()
        while not rest.is_little and len(rounds) < ROUNDS and (ranges := self._ranges()):
            compare = self.services.parity if rest.offsets > MANY else self.services.quick_parity
            rounds.append(self._prove_once(ranges, compare, f"{folder}-{len(rounds) + 2}"))
            before, rest = rest, self._rest(rounds[-1].ends, rounds[-1].per_second)
            if rest.offsets > before.offsets * SHRINKS:
                break
        return rounds, rest

    def _rest(self, proven: Mapping[Partition, Offset], per_second: float | None) -> Rest:
        return rest_of(self.link, self.scope.drained, proven, per_second)

    def _ranges(self) -> list[ParityRange]:
        with ClusterClient(self.link.destination) as destination:
            positions = list_offsets(destination, self.scope.drained, Point.LOG_END)
        return [ParityRange(partition=p, start=Offset(0), end=end) for p, end in sorted(positions.items()) if end]

    def _prove_once(self, ranges: Sequence[ParityRange], compare: ParityCheck, name: str) -> Round:

        def comparing(rest: Sequence[ParityRange], so_far: SoFar) -> ParityResult:
            folder, told = self.services.run_dir(self.journal.run_id) / name, telling(rest, so_far, self.say)
            return compare(self.link.source.name, self.link.destination.name, rest, folder, told)

        # Compacted logs are compared whole in the first round only: else no round would be shorter.
        proven = self.journal.kept("prove", Proven)
        result, proof, before = compare_rest(
            self.link,
            self.writer.state,
            ranges,
            comparing,
            whole=False,
            keep=self.writer.put,
            recent=proven.ends.by_partition() if proven else (),
            further=(),
        )
        earlier = before.of(ranges)
        self.writer.put(proof)  # also when the gate fails
        verdict = open_gate(result, "the proof of what is mirrored so far", earlier_records=earlier)
        self.journal.keep("prove", Proven(ends=Offsets.of(dict(result.proven)), records=result.records + earlier))
        offsets = sum(max(0, result.proven[r.partition] - r.start) for r in before.rest(ranges))
        return Round(
            verdict=verdict,
            ends=result.proven,
            records=result.records,
            records_before=earlier,
            chunks=result.chunks,
            report=result.report,
            per_second=offsets / result.seconds if result.seconds else None,
        )

    def fence(self) -> Evidence:
        self.writer.refresh()  # `prove` may have taken hours
        self.check_approval("fence", source_needed=True)
        if take_back(self, self.scope):  # shows a destination that is ahead
            self.check_approval("fence", source_needed=True)
            if not self._may_stand():
                raise not_compared(self)
        self._refuse_if_strayed()
        owed = self.writer.state.debts.get(self.link.mirror.name)
        if owed is not None:  # an earlier run's pending lift: ours from here on
            shut = [checkpoint(self.journal.run_id, "fence", Shut(cluster=owed.cluster))] if owed.by_command else []
            self.writer.put(*shut, Forget(owed))
        with ClusterClient(self.link.source) as source:
            # A fence that stands already must not wait for the file.
            lift = LiftFile(self, needed=not self._may_stand())
            while True:
                by_command = ByCommand(self, "fence", lift)
                fence = raise_fence(
                    self.link, self.writer, source, self.scope.names, self.scope.drained, before=lift, shut=by_command
                )
                if not take_back(self, self.scope):  # written until the fence stood
                    break
        ends = Offsets.of(fence.ends)
        self.journal.leave("fence", Fenced(ends=ends, authorizer=fence.authorizer, command=fence.command))
        return {
            "authorizer": fence.authorizer,
            **({"fence_command": "done"} if fence.command else {}),
            "denials": len(fence.denials),
            "shown_by_brokers": some(fence.brokers),
            "transactions_waited_for": some(fence.transactions),
            **({"not_denied": ONLY_AWAITED} if EVERY_ID in fence.transactions else {}),
            "still_s": fence.still_s,
            "partitions": len(fence.ends),
            **({FILE: lift.words} if lift.words else {}),
        }

    def _may_stand(self) -> bool:
        entries = entered(self.writer, self.link.mirror.name, self.link.source.name, AclPurpose.FENCE)
        return bool(entries) or has_shut(self.writer.state, self.journal.run)

    def drain(self) -> Evidence:
        """Fence the driver from the state topic, then copy up to the source's log ends."""
        refuse_if_unfenced(self)
        return insisting(self, "drain", self._drain)

    def _drain(self) -> Evidence:
        # Its tasks may outlive it until `writers_until_ms`.
        with self.leased("drain") as (data, lease):
            # Read what the data plane recorded until now. From here on nobody else writes partition states.
            self.writer.refresh()
            self._refuse_if_strayed()
            partitions = self.scope.drained
            with ClusterClient(self.link.source) as source:
                ends = list_offsets(source, partitions, Point.LOG_END)
            started = now_ms()
            # So may we: whoever gives up a hanging source must know until when we copy.
            keep = partial(keep_deletions, self.link, self.writer)
            until = telling_rounds(self.link, ends, self.say, partial(say_until, data, lease))
            self.services.copy(self.link)(ends, DRAIN_S, until, keep)
            left = outwait_tasks(self, lease, healthy(self.statuses()).keys() & set(self.scope.left))
            data.put(replace(lease, beat_ms=now_ms()))
        with ClusterClient(self.link.destination) as destination:
            late = stop_commits(self.link.mirror, self.writer, destination)
        positions = verify_drained(self.link, ends)
        behind = standing_at(self.link, left)
        self.journal.leave("drain", Drained(positions=Offsets.of(positions), left=behind))
        return {
            "partitions": len(positions),
            **in_evidence(behind),
            "copied_ms": now_ms() - started,
            "late_commits": late,
        }

    def final_sync(self) -> Evidence:
        """No new topics: only what was approved is fenced."""
        refuse_if_lifted(self)
        report = sync(
            self.link,
            self.writer,
            only=frozenset({Part.CONFIGS, Part.ACLS, Part.GROUPS}),
            run_id=self.journal.run_id,
        )
        self.journal.leave("promote", Resumes.of(resumes(report.rows)))
        return {**counted(report.rows), **self.groups_left(report.rows)}

    def parity(self) -> Evidence:
        """The gate: records since `prove` are equal, and so are log ends."""
        proof = left_by(self.journal, "prove", Proven)
        proven = proof.ends.by_partition()
        with ClusterClient(self.link.destination) as destination:
            ends = list_offsets(destination, self.scope.drained, Point.LOG_END)
        ranges = [
            ParityRange(partition=p, start=min(proven.get(p, Offset(0)), end), end=end)
            for p, end in sorted(ends.items())
        ]
        result = self.services.gate(self.link.source.name, self.link.destination.name, ranges, self.journal.run_id)
        if result.findings or result.damaged:  # also for an aborted run
            self.writer.put(with_differences(self.writer.state, self.link.mirror.name, result))
        verdict = open_gate(result, "the parity gate", earlier_records=proof.records)
        self.journal.leave("parity", Equal(ends=Offsets.of(ends)))
        return {
            "verdict": verdict,
            "records_since_proof": result.records,
            "records_in_all": result.records + proof.records,
            "partitions": len(ends),
            NOT_COMPARED: self._as_it_is(),
            "report": result.report,
        }

    def _as_it_is(self) -> str:
        left = sorted(set(self.scope.promoted) - set(self.scope.drained))
        return f"{len(left)} partition(s): {some(left)}" if left else NONE

    @property
    def positions(self) -> dict[Partition, Offset]:
        return left_by(self.journal, "drain", Drained).positions.by_partition()

    @property
    def left_behind(self) -> dict[Partition, LeftBehind]:
        return left_by(self.journal, "drain", Drained).left_behind()

    def standing(self) -> Iterator[Record]:
        fenced = left_by(self.journal, "fence", Fenced)
        yield Debt(
            mirror=self.link.mirror.name,
            cluster=self.link.source.name,
            owed=Owed.FENCE,
            run=self.journal.run_id,
            since_ms=now_ms(),
            paid_ms=now_ms() if fenced.held else None,
            ends=fenced.ends,
            by_command=fenced.command,
            trouble="" if fenced.held else f"cluster {self.link.source.name} could not be fenced",
        )

    def fenced_now(self) -> Evidence:
        held = left_by(self.journal, "fence", Fenced).held
        return paid_again(self, self.scope.names, self.scope.drained) if held else {}

    def lost(self) -> tuple[int | None, str]:
        fenced = left_by(self.journal, "fence", Fenced)
        left = set(self.scope.left)
        if lifted := lost_while_lifted(self, fenced.held):
            return with_left(*lifted, left)
        gate = self.journal.record("parity")
        failed = set(self.scope.promoted) - set(self.scope.drained) - left
        lost, by = lost_behind_fence(gate.evidence if gate else {}, failed, left)
        if lost == 0 and fenced.command:  # only log ends show what a command did
            look = look_again(self.link, (), self.positions)
            if not look.whole or look.ends.keys() < self.positions.keys():
                return None, unseen_behind_fence(self.link.source.name, look.words)
            taken = sum(max(0, end - self.positions[p]) for p, end in look.ends.items())
            return taken, by if not taken else f"by what {self.link.source.name} took behind its fence_command"
        if lost == 0 and fenced.authorizer:
            look = look_again(self.link, denials_of(self.scope.names), ())
            if not look.shown:
                return None, unseen_behind_fence(self.link.source.name, look.words)
        return lost, by

    def check_before_promotion(self) -> Look:
        """Refused if the approval no longer holds, or the source was written behind the fence.

        Log ends show a super user's writes, removed denials and a missing authorizer. A fenced source that died after
        drain and parity forbids nothing: all it had acknowledged is on the destination.
        """
        self.check_approval("promotion", source_needed=False)
        positions, names = self.positions, self.scope.names
        fenced = left_by(self.journal, "fence", Fenced)
        denials = tuple(denials_of(names)) if fenced.authorizer else ()
        look, file = uncontradicted(self, denials, positions)
        if fenced.command and look.answers and shut_again(self, "fence", names):
            look, file = uncontradicted(self, denials, positions)
        refuse_in_doubt(self, look, held=fenced.held, file=file)
        return look

    def _refuse_if_strayed(self) -> None:
        reasons = tuple(strayed(self.scope, self.statuses()))
        if reasons:
            raise Refused(f"run {self.journal.run_id}: abort it and plan again", reasons[:SHOWN])
