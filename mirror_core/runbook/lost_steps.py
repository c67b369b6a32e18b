"""What each step of an unplanned failover does: the source is presumed dead, and nobody waits for it.

Each may be repeated after a crash at any point of it. What every failover ends with is in `promotion`.
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
"""Brokers that a refusal names."""
FLUENT_S: Final = 60.0
"""From the fence to the promotion, of a run that nothing holds up."""
WORD_S: Final = 300.0
"""From a person's word for a source that cannot be fenced to the promotion."""


class LostSteps(Promotion):
    """The acts of an unplanned failover."""

    __slots__ = ()

    def settle(self) -> Evidence:
        """Nobody of the mirror's writes any more; what is there is on all in-sync replicas, and stands still.

        The copier appends whole batches of committed records, markers, or hidden records: wherever it was stopped the
        log is whole, so there is nothing to be finished. A gap that was half used up ends where it ended.
        """
        return insisting(self, "settle", self._settle)

    def _settle(self) -> Evidence:
        started = now_ms()
        with self.leased("settle") as (_, lease):
            self.writer.refresh()
        with ClusterClient(self.link.destination) as destination:
            silenced = silence_copiers(self.link, self.writer, destination, self.scope.names)
            if not silenced.certain:
                # Nobody is kept out for sure: its own clock stops a task that has lost its driver.
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
        """Owe the source its fence: in the state topic before anything else, on the source if it answers now."""
        refuse_if_lifted(self)  # since an earlier attempt: a file written anew would not tell of it
        names, cluster = self.scope.names, self.link.source.name
        debt = Debt(
            mirror=self.link.mirror.name,
            cluster=cluster,
            owed=Owed.FENCE,
            run=self.journal.run_id,
            since_ms=now_ms(),
        )
        ruling, lift = self.link.source.ruling, LiftFile(self, needed=False)
        # A watcher may be who closes the source, and the destination may die behind that.
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
        """Where nothing was given yet, a fence that is up only now asks for the same word as one that was up before."""
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
        """As every failover does; and what of it was ever compared with the source, while there was one."""
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
        """No group may start from an offset that its partition does not have."""
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
        """Refused when what was approved holds no more, or somebody has lifted the fence that had been put up.

        A source that is silent, or that answers and cannot be fenced, holds nobody up: but for a promotion that had
        begun before, and may be resumed days later. One that answers and was silent when it was given up, or that had
        time to take writes, is fenced first. What it has that was not copied is left behind only by a word of its own;
        so is one that had that time and cannot be fenced.
        """
        self.check_approval("promotion", source_needed=False)
        names, name, run = self.scope.names, self.link.source.name, self.journal.run_id
        stands = self._debt.paid_ms is not None
        shown = stands and not self._debt.by_command  # what a command has done no broker shows
        look = look_again(self.link, denials_of(names) if shown else (), self.scope.promoted)
        self._refuse_lifted(look)
        held_up = self.journal.begun("promote") or self._stood_long()
        silent = self.journal.run.source_silent
        if word_needed(answers=look.answers, stands=stands, silent=silent, held_up=held_up):
            returned = self.journal.kept("promote", Returned)
            told = returned is not None and (stands or (returned.ends == NO_OFFSETS and not self._lapsed(returned)))
            if returned is None or not told:  # what was told holds no more
                returned = Returned()
                self.journal.keep("promote", returned)
            found = {} if stands else paid_again(self, names, self.scope.promoted)
            if self._debt.paid_ms is None and held_up and not returned.left_behind:
                self.journal.keep("promote", replace(returned, told=True))
                why = str(found.get("source", self._debt.trouble))
                raise Refused(f"run {run}: promotion", [ways_on_unfenced(self.link.mirror.name, name, why)])
            if not held_up:
                self._forget_unasked()
            if not stands:  # that took its time, which is not this run's being held up
                look = look_again(self.link, (), self.scope.promoted)
        refuse_what_it_took(self, look)
        return look

    def _refuse_lifted(self, look: Look) -> None:
        """Refused where the fence that had been put up does not keep writers out any more."""
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
        """A word for a source that takes writes is for now: nobody has left behind what it takes in days to come."""
        return returned.left_behind and (now_ms() - returned.said_ms) / 1000 > WORD_S

    def _forget_unasked(self) -> None:
        """A source that cannot be fenced has stopped nobody, and nobody was asked: no word is taken for it."""
        returned = self.journal.kept("promote", Returned)
        if returned is None or returned.left_behind or returned.told or self._debt.paid_ms is not None:
            return
        self.writer.put(Forget(checkpoint(self.journal.run_id, "promote", returned)))

    def _needs_word(self, *, held_up: bool) -> bool:
        """Of a source that answers, and whose fence is new."""
        return word_needed(answers=True, stands=False, silent=self.journal.run.source_silent, held_up=held_up)

    def _stood_long(self) -> bool:
        """Whether the run was held up on its way here, so that a source which is back had time to take writes."""
        stood = self.journal.record("stand")
        return stood is not None and (now_ms() - (stood.ended_ms or 0)) / 1000 > FLUENT_S

    def _waited_to_settle(self) -> bool:
        """People were waited for: applications that know of no failover may have written to a source that is back."""
        settle = self.journal.record("settle")
        if settle is None or settle.attempt == 1:
            return False
        return ((settle.ended_ms or 0) - settle.begun_ms) / 1000 > FLUENT_S

    @property
    def _debt(self) -> Debt:
        return self.writer.state.debts[self.link.mirror.name]

    def _at_rest(self, client: ClusterClient) -> Settled:
        """Log ends that stand still and are on all in-sync replicas, of partitions that are well and have a leader.

        What has FAILED is promoted as it is, be it that somebody writes there: it holds up nothing else. What too few
        replicas hold up is left behind only by a person's word, given when that person had been told of it.
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
            # A person's word is about what it has been told.
            self.journal.keep("settle", Unreplicated.of(rest.held))
            listed = [f"{p}: {one}" for p, one in rest.held.items()]
            # A word is for what was named: the rest without its figures.
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
