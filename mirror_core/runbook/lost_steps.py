"""The steps of an unplanned failover: the source is presumed dead, and never waited for.

Each may be repeated after a crash. The common last steps are in `promotion_steps`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from mirror_core.decide.left_behind import ways_on_unfenced, word_needed
from mirror_core.decide.loss import loss, uncopied
from mirror_core.decide.loss_figures import CUT, NOT_MIRRORED, cut_at, uncopied_in_words
from mirror_core.decide.proof import compared_before
from mirror_core.decide.reckoning import lost_with_source, with_uncopied
from mirror_core.decide.sets import set_of, waiting_behind
from mirror_core.decide.settling import agreed, ways_on
from mirror_core.decide.together import COMPLETE, in_words, together
from mirror_core.decide.view import some
from mirror_core.evidence import heads
from mirror_core.kafka.client import ClusterClient
from mirror_core.mirrors.proving import known, with_differences
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import MirrorError, Refused
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import NO_OFFSETS, Offsets
from mirror_core.model.parity import ParityResult
from mirror_core.model.ruling import Authorizer
from mirror_core.model.run import Evidence
from mirror_core.model.standing import Debt, Owed
from mirror_core.runbook.certifying import certify
from mirror_core.runbook.checkpoints import ComparedBefore, LeftBehind, Resumes, Settled, Unreplicated, left_by
from mirror_core.runbook.insisting import insisting
from mirror_core.runbook.last_look import Look, look_again
from mirror_core.runbook.promotion import Promotion, counted
from mirror_core.runbook.raised_again import paid, paid_again, refuse_if_lifted, refuse_what_it_took
from mirror_core.runbook.settling import SETTLE_S, come_to_rest
from mirror_core.runbook.unfencing import LiftFile
from mirror_core.state.journal import checkpoint
from mirror_core.state.records import Forget, Record
from mirror_core.state.turning import Returned, turned
from mirror_core.sync.fence import denials_of, intended
from mirror_core.sync.group_commits import stop_commits
from mirror_core.sync.groups import clamp_groups, resumes
from mirror_core.sync.silencing import silence_copiers

SHOWN: Final = 20
FLUENT_S: Final = 60.0
"""Fence to promotion of an undisturbed run."""
WORD_S: Final = 300.0
"""Validity of a confirmation for a source that cannot be fenced."""


class LostSteps(Promotion):
    __slots__ = ()

    def settle(self) -> Evidence:
        """No mirror task writes; logs are stable and on all in-sync replicas.

        The copier appends whole batches of committed records, markers or hidden records. So wherever it stopped, the
        log is whole. A half-filled gap ends where it ended.
        """
        return insisting(self, "settle", self._settle)

    def _settle(self) -> Evidence:
        started = now_ms()
        with self.leased("settle") as (_, lease):
            self.writer.refresh()
        with ClusterClient(self.link.destination) as destination:
            silenced = silence_copiers(self.link, self.writer, destination, self.scope.names)
            if not silenced.certain:
                # Fencing is uncertain: wait until tasks stop by their own clock.
                time.sleep(max(0, lease.writers_until_ms - now_ms()) / 1000)
            late = stop_commits(self.link.mirror, self.writer, destination)
            settled = self._at_rest(destination)
        positions, left = settled.positions.by_partition(), settled.left_behind()
        away = sorted(set(self.scope.drained) - positions.keys() - left.keys())
        self.journal.keep("settle", settled)
        beyond = some(f"{p} [{'unknown' if one.high is None else one.high}, {one.end})" for p, one in left.items())
        return {
            "partitions": len(positions),
            "without_leader": some(away) or "none",
            **({"left_behind": f"{len(left)}: {beyond}"} if left else {}),
            "copiers": "denied to write" if silenced.certain else "outwaited",
            **({"copiers_in_doubt": silenced.doubt} if silenced.doubt else {}),
            "late_commits": late,
            "settled_ms": now_ms() - started,
        }

    def stand(self) -> Evidence:
        """Record the pending fence first, then apply it if the source answers now."""
        refuse_if_lifted(self)  # a rewritten file would hide it
        names, cluster = self.scope.names, self.link.source.name
        debt = Debt(
            mirror=self.link.mirror.name,
            cluster=cluster,
            owed=Owed.FENCE,
            run=self.journal.run_id,
            since_ms=now_ms(),
        )
        ruling, lift = self.link.source.ruling, LiftFile(self, needed=False)
        # A watcher may close the source, and the destination die afterwards.
        if ruled := ruling.authorizer is Authorizer.KAFKA:
            lift(tuple(denials_of(names)))
        elif ruling.fence is not None:
            lift.by_command(names)
        self.writer.put(debt, *(intended(self.link.mirror, cluster, denials_of(names)) if ruled else ()))
        done = paid(self, debt, names, self.scope.promoted, lift)
        if self._debt.paid_ms is not None and self._needs_word(held_up=self._waited_to_settle()):
            self.journal.keep("promote", Returned())
        return done

    def fenced_now(self) -> Evidence:
        """A fence applied only now, before any grant, asks for the same confirmation."""
        may_stop = not turned(self.writer.state, self.journal.run)
        news = self._debt.paid_ms is None and self.journal.kept("promote", Returned) is None
        if may_stop and news and self._needs_word(held_up=False):
            self.journal.keep("promote", Returned())
        done = paid_again(self, self.scope.names, self.scope.promoted)
        if may_stop:
            self._forget_unasked()
            refuse_what_it_took(self, Look())
        return done

    def record_lmo(self) -> Evidence:
        done = super().record_lmo()
        with ClusterClient(self.link.destination) as destination:
            basis = known(self.link, self.writer.state, destination)
        ends = {p: s.lmo for p, s in self.statuses().items() if s.lmo is not None}
        self.journal.keep(
            "record_lmo", ComparedBefore(ends=Offsets.of({p: Offset(one.end) for p, one in basis.holding.items()}))
        )
        state, name = self.writer.state, self.link.mirror.name
        groups = self.link.config.belonging(name)
        seen, statuses = state.sightings.get(name), self.statuses()
        return {
            **done,
            NOT_MIRRORED: uncopied_in_words(loss(statuses, seen, ends, (), now_ms=now_ms())),
            **{f"{COMPLETE}, {one.name}": in_words(one) for one in together(groups, statuses, seen, ends)},
            **dict(cut_at(statuses, seen, ends, now_ms()) if CUT in self.journal.run.plan.figures else ()),
            **compared_before(basis, ends),
            "receipts": heads.in_words(state.receipts.get(name, {})),
        }

    def certify(self) -> Evidence:
        folder, run = self.services.run_dir(self.journal.run_id), self.journal.run
        chosen = self.link.config.sets.get(set_of(run.part_of))
        waits = None if chosen is None else waiting_behind(run.plan.mirror, chosen)

        def keep(found: ParityResult) -> None:
            self.writer.put(with_differences(self.writer.state, self.link.mirror.name, found))

        return certify(self.link, self.writer.state, self.services.receipts, folder, self.say, keep=keep, waits=waits)

    def final_offsets(self) -> Evidence:
        rows = clamp_groups(self.link, self.scope.names, {p: one.high for p, one in self.left_behind.items()})
        self.journal.keep("promote", Resumes.of(resumes(rows)))
        return {**counted(rows), **self.groups_left(rows)}

    @property
    def positions(self) -> dict[Partition, Offset]:
        return left_by(self.journal, "settle", Settled).positions.by_partition()

    @property
    def left_behind(self) -> dict[Partition, LeftBehind]:
        return left_by(self.journal, "settle", Settled).left_behind()

    def standing(self) -> Iterator[Record]:
        yield from ()

    def lost(self) -> tuple[int | None, str]:
        state, name, statuses = self.writer.state, self.link.mirror.name, self.statuses()
        count, how = lost_with_source(state.debts.get(name), statuses)
        count, how = with_uncopied(count, how, uncopied(statuses, state.sightings.get(name)))
        if left := self.left_behind:
            how += f"; of {some(left)} some may be on {self.link.destination.name} all the same: left behind by settle"
        return count, how

    def check_before_promotion(self) -> Look:
        """Refused if the approval no longer holds, or somebody lifted an applied fence.

        A silent source, or one that cannot be fenced, delays nobody, unless the promotion had begun before: that one
        may be resumed days later. A source that answers after it was given up, or had time to accept writes, is
        fenced first. Its uncopied records are left behind only after confirmation; so is such a source that cannot be
        fenced.
        """
        self.check_approval("promotion", source_needed=False)
        names, name, run = self.scope.names, self.link.source.name, self.journal.run_id
        stands = self._debt.paid_ms is not None
        shown = stands and not self._debt.by_command  # no broker shows a command's fence
        look = look_again(self.link, denials_of(names) if shown else (), self.scope.promoted)
        self._refuse_lifted(look)
        held_up = self.journal.begun("promote") or self._stood_long()
        silent = self.journal.run.source_silent
        if word_needed(answers=look.answers, stands=stands, silent=silent, held_up=held_up):
            returned = self.journal.kept("promote", Returned)
            told = returned is not None and (stands or (returned.ends == NO_OFFSETS and not self._lapsed(returned)))
            if returned is None or not told:  # outdated
                returned = Returned()
                self.journal.keep("promote", returned)
            found = {} if stands else paid_again(self, names, self.scope.promoted)
            if self._debt.paid_ms is None and held_up and not returned.left_behind:
                self.journal.keep("promote", replace(returned, told=True))
                why = str(found.get("source", self._debt.trouble))
                raise Refused(f"run {run}: promotion", [ways_on_unfenced(self.link.mirror.name, name, why)])
            if not held_up:
                self._forget_unasked()
            if not stands:  # fencing took time
                look = look_again(self.link, (), self.scope.promoted)
        refuse_what_it_took(self, look)
        return look

    def _refuse_lifted(self, look: Look) -> None:
        name, run = self.link.source.name, self.journal.run_id
        if look.bare:
            raise Refused(
                f"run {run}: promotion, since somebody has lifted the fence on {name}, where applications may write "
                "again; abort this run, and plan again",
                look.bare[:SHOWN],
            )
        if self._debt.paid_ms is not None and self._debt.by_command:
            refuse_if_lifted(self)
            ends = self._debt.ends.by_partition()
            if taken := [f"{p} from {ends[p]} to {end}" for p, end in look.ends.items() if end > ends.get(p, end)]:
                raise Refused(
                    f"run {run}: promotion, since {name} has taken writes behind its fence_command; abort this run, "
                    "and plan again",
                    taken[:SHOWN],
                )

    @staticmethod
    def _lapsed(returned: Returned) -> bool:
        """A confirmation about a writable source expires: nobody agreed to later writes."""
        return returned.left_behind and (now_ms() - returned.said_ms) / 1000 > WORD_S

    def _forget_unasked(self) -> None:
        returned = self.journal.kept("promote", Returned)
        if returned is None or returned.left_behind or returned.told or self._debt.paid_ms is not None:
            return
        self.writer.put(Forget(checkpoint(self.journal.run_id, "promote", returned)))

    def _needs_word(self, *, held_up: bool) -> bool:
        return word_needed(answers=True, stands=False, silent=self.journal.run.source_silent, held_up=held_up)

    def _stood_long(self) -> bool:
        stood = self.journal.record("stand")
        return stood is not None and (now_ms() - (stood.ended_ms or 0)) / 1000 > FLUENT_S

    def _waited_to_settle(self) -> bool:
        settle = self.journal.record("settle")
        if settle is None or settle.attempt == 1:
            return False
        return ((settle.ended_ms or 0) - settle.begun_ms) / 1000 > FLUENT_S

    @property
    def _debt(self) -> Debt:
        return self.writer.state.debts[self.link.mirror.name]

    def _at_rest(self, client: ClusterClient) -> Settled:
        """Stable, replicated log ends of healthy partitions with leaders.

        FAILED partitions are promoted as they are. Under-replicated ones are left behind only after confirmation.
        """
        word = self.journal.kept("settle", Unreplicated)
        told = word.told() if word is not None and word.left_behind else None
        rest, name, run = come_to_rest(client, self.scope.drained, told), client.name, self.journal.run_id
        if rest.moving:
            found = some([f"{p}: {one}" for p, one in (*rest.moving.items(), *rest.held.items())])
            raise MirrorError(
                f"cluster {name} has log ends that still move after {SETTLE_S:.0f} s: {found}. A replica may be away "
                "that is still counted as in sync, or somebody else writes: fix it and resume the run"
            )
        if rest.held and (told is None or not agreed(rest.held, told)):
            # A confirmation covers only what was reported.
            self.journal.keep("settle", Unreplicated.of(rest.held))
            listed = [f"{p}: {one}" for p, one in rest.held.items()]
            # Name all of them: a confirmation covers only these.
            others = [str(p) for p in list(rest.held)[SHOWN:]]
            more = [f"and {len(others)} more partitions: {', '.join(others)}"] if others else []
            ways = ways_on(name, self.link.destination.control["bootstrap.servers"], self.link.mirror.name, rest.held)
            raise Refused(f"run {run}: too few replicas on {name} are in sync", [*listed[:SHOWN], *more, *ways])
        return Settled(
            positions=Offsets.of(rest.ends),
            left=tuple(
                LeftBehind(topic=p.topic, index=p.index, end=one.end, high=one.high) for p, one in rest.held.items()
            ),
        )
