"""Failback steps that take the old source's logs back. Nothing unsaved is discarded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.decide.failback import tails_fact
from mirror_core.decide.parity import NOTHING
from mirror_core.decide.strategies import came, is_anew, tails, wider
from mirror_core.decide.view import Topic, some
from mirror_core.evidence.salvage_report import write_salvage_report
from mirror_core.kafka.client import ClusterClient, TopicView
from mirror_core.kafka.existing import existing
from mirror_core.kafka.offsets import Point, list_offsets
from mirror_core.kafka.placing import placements
from mirror_core.kafka.rights import rights_on
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topic, describe_configs
from mirror_core.model.clock import now_ms
from mirror_core.model.errors import Indeterminate, Refused, Unreachable
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition
from mirror_core.model.offsets import Offsets
from mirror_core.model.parity import Fate, ParityRange, ParityResult, Saved
from mirror_core.model.run import Evidence, Strategy
from mirror_core.model.standing import Owed
from mirror_core.parity.salvage import MANIFEST
from mirror_core.rights.needed import lacking_for
from mirror_core.runbook.acts import Acts
from mirror_core.runbook.checkpoints import OldTopic, OldTopics, Placed, Salvaged, left_by
from mirror_core.runbook.counting import counted_later
from mirror_core.runbook.offline import cut_offline
from mirror_core.runbook.parking import check_majority, cut_by_replica, prepare
from mirror_core.runbook.shutting import ByCommand
from mirror_core.runbook.unfencing import LiftFile
from mirror_core.state.records import PartitionRecord
from mirror_core.sync.fence import Fence, raise_fence

_ENDS: Final = frozenset({"log start", "log end"})


def _part(number: int) -> str:
    return "salvage" if number == 1 else f"salvage-{number}"


class TailSteps(Acts):
    __slots__ = ()

    def salvage(self) -> Evidence:
        """Save divergent tails. Only saved records may be discarded."""
        with ClusterClient(self.link.source) as old:
            topics, there = self._old_source(old)
            fence = self._raise_fence(old, self._topics(), there, "salvage")
        ends = dict(fence.ends)
        self._pay(fence)
        compared = self._compare(topics, ends)
        found = tails(self.statuses(), topics, ends)
        self._refuse_unapproved(found)
        saved = self._save(found, "salvage")
        self.journal.keep("salvage", Salvaged(ends=Offsets.of(ends)))
        return {
            "compared_records": compared.records if compared else 0,
            **self._shown(found, saved),
            "folder": str(self._folder("salvage")) if found else "",
            **counted_later(self.link, self.writer, found, ends),
        }

    def check_approval(self) -> None:
        """Before any change: logs that shall stay have not grown. An abort is still possible."""
        salvaged = left_by(self.journal, "salvage", Salvaged).ends.by_partition()
        kept = {t for t, s in self.journal.run.plan.strategies.items() if s is Strategy.NONE}
        with ClusterClient(self.link.source) as old:
            topics, partitions = self._old_source(old)
            self._refuse_wider(topics)
            there = [p for p in partitions if p.topic in kept]
            now = list_offsets(old, there, Point.LOG_END)
            self._check_rights(old)
            if short := self._points(old, Strategy.REPLICA):
                check_majority(self, old, short)
                prepare(self, old, short)
        grown = [f"{p} from {salvaged.get(p, 0)} to {end}" for p, end in now.items() if end > salvaged.get(p, 0)]
        if grown:
            raise Refused(
                f"failback {self.journal.run_id}: step align",
                [
                    f"somebody has written on {self.link.source.name} in spite of the fence, in topics of which "
                    f"nothing was to be discarded: {some(grown)}. Abort this run and plan again"
                ],
            )

    def _refuse_wider(self, topics: Mapping[str, Topic]) -> None:
        with ClusterClient(self.link.destination) as new:
            new_topics = {n: Topic(id=v.id, partitions=len(v.partitions)) for n, v in existing(new, topics).items()}
        strategies = self.journal.run.plan.strategies
        found = [
            f"topic {topic} has {had} partitions on {self.link.source.name} and {has} on {self.link.destination.name}, "
            f"and strategy {strategies[topic]} takes none away"
            for topic, (had, has) in wider(topics, new_topics).items()
            if strategies[topic] is not Strategy.RECREATE
        ]
        if found:
            reason = f"{some(found)}. Abort this run and plan again"
            raise Refused(f"failback {self.journal.run_id}: step align", [reason])

    def _check_rights(self, old: ClusterClient) -> None:
        strategies = self.journal.run.plan.strategies
        on_cluster, on_topics = rights_on(old, strategies)
        if lacking := [*lacking_for(strategies, on_cluster or frozenset(), on_topics)]:
            name = self.link.source.name
            advice = f"`mirrorbook cluster check {name}` names the grants; then resume, or abort"
            raise Refused(
                f"failback {self.journal.run_id}: step align",
                [f"cluster {name}: {line}, which the control principal lacks; {advice}" for line in lacking],
            )

    def align(self) -> Evidence:
        strategies = self.journal.run.plan.strategies
        doomed = [t for t, s in strategies.items() if s is Strategy.RECREATE]
        with ClusterClient(self.link.source) as old, ClusterClient(self.link.destination) as new:
            topics = self._noted(old, doomed)
            again = self._save_growth(old, topics)
            self._recreate(old, new, topics)
            offline, short = self._points(old, Strategy.OFFLINE), self._points(old, Strategy.REPLICA)
            placed = self._placed(old, {**offline, **short})
            cut = {**cut_by_replica(self, old, short, placed), **cut_offline(self, old, offline, placed)}
        return {"recreated": len(topics), "topics": some(topic.name for topic in topics) or "none", **again, **cut}

    def statuses(self) -> dict[Partition, PartitionStatus]:
        return came(super().statuses())

    # -- inside --------------------------------------------------------------------------------------------------

    def _topics(self) -> list[str]:
        return sorted({p.topic for p in self.statuses()})

    def _old_source(self, client: ClusterClient) -> tuple[dict[str, Topic], list[Partition]]:
        views = existing(client, self._topics())
        there = [Partition(name, index) for name, v in sorted(views.items()) for index in sorted(v.partitions)]
        return {name: Topic(id=v.id, partitions=len(v.partitions)) for name, v in views.items()}, there

    def _raise_fence(
        self, old: ClusterClient, topics: Collection[str], there: Collection[Partition], step: str
    ) -> Fence:
        lift = LiftFile(self)
        return raise_fence(self.link, self.writer, old, topics, there, before=lift, shut=ByCommand(self, step, lift))

    def _pay(self, fence: Fence) -> None:
        debt = self.writer.state.debts.get(self.link.mirror.name)
        held = fence.authorizer or fence.command
        if held and debt is not None and debt.owed is Owed.FENCE and debt.paid_ms is None:
            ends = Offsets.of(fence.ends)
            self.writer.put(replace(debt, paid_ms=now_ms(), ends=ends, by_command=fence.command, trouble=""))

    def _compare(self, topics: Mapping[str, Topic], ends: Mapping[Partition, Offset]) -> ParityResult | None:
        """Also below the LMO: an unclean election may have changed history. None: nothing to compare."""
        statuses = self.statuses()
        there = [p for p in ends if p in statuses and not is_anew(statuses[p], topics)]
        with ClusterClient(self.link.source) as old, ClusterClient(self.link.destination) as new:
            first, second = (list_offsets(client, there, Point.START) for client in (old, new))
        ranges = [
            ParityRange(partition=p, start=start, end=end, stopped_at=end)
            for p in there
            if (start := max(first[p], second[p])) < (end := Offset(min(ends[p], statuses[p].lmo or 0)))
        ]
        if not ranges:
            return None
        folder = self.services.run_dir(self.journal.run_id) / "compare"
        # The new primary's retention goes on: the old source's log is in question.
        parity = self.services.parity_of(ranges)
        result = parity(self.link.destination.name, self.link.source.name, ranges, folder)
        doubts = [reason for reason in result.reasons if reason not in NOTHING]
        doubts += [f"{f.partition}: {f.detail}" for f in result.findings if f.kind in _ENDS]
        if doubts:
            raise Indeterminate(
                f"failback {self.journal.run_id}: from where on {self.link.source.name} differs is not known: "
                f"{'; '.join(doubts[:5])}. Mend it, resume"
            )
        differs = {r.partition: o for r in ranges if (o := result.proven.get(r.partition, r.start)) < r.end}
        news = [
            replace(statuses[r.partition], differs_at=differs.get(r.partition))
            for r in ranges
            if statuses[r.partition].differs_at != differs.get(r.partition)
        ]
        if news:
            self.writer.put(*(PartitionRecord(self.link.mirror.name, status) for status in news))
        return result

    def _refuse_unapproved(self, found: Mapping[Partition, tuple[Offset, Offset]]) -> None:
        now, plan = tails_fact(found), self.journal.run.plan
        approved = next((fact for fact in plan.bound if fact.name == now.name), None)
        if approved != now:
            statuses = self.statuses()
            lower = [f"{p} from offset {o}" for p, s in statuses.items() if (o := s.differs_at) is not None]
            reason = (
                f"what only {self.link.source.name} has is not what was approved: that was "
                f"{approved.value if approved else 'unknown'}, it is {now.value}"
            )
            below = f"; below the last mirrored offset it differs in {some(lower)}" if lower else ""
            raise Refused(
                f"failback {self.journal.run_id}: step salvage", [f"{reason}{below}. Abort this run and plan again"]
            )

    def _save(self, found: Mapping[Partition, tuple[Offset, Offset]], name: str) -> Mapping[Partition, Saved]:
        if not found:
            return {}
        ranges = [ParityRange(partition=p, start=start, end=end) for p, (start, end) in found.items()]
        old, new = self.link.source.name, self.link.destination.name
        saved = self.services.salvage(old, ranges, self._folder(name), new)
        write_salvage_report(self._folder(name), list(saved.values()), run=self.journal.run_id, old=old, new=new)
        return saved

    def _folder(self, name: str) -> Path:
        return self.services.run_dir(self.journal.run_id) / name

    def _shown(
        self, found: Mapping[Partition, tuple[Offset, Offset]], saved: Mapping[Partition, Saved]
    ) -> dict[str, str | int]:
        tailed = some(f"{p} [{start}, {end}): {saved[p].records} record(s)" for p, (start, end) in found.items())
        return {
            "records": sum(s.records for s in saved.values()),
            "partitions": len(found),
            "salvaged": tailed or "nothing: there is no tail",
            **{
                fate.value.replace(" ", "_"): sum(s.fates.get(fate, 0) for s in saved.values())
                for fate in Fate
                if saved
            },
        }

    def _save_growth(self, old: ClusterClient, noted: tuple[OldTopic, ...]) -> dict[str, str | int]:
        """Save what was written despite the fence since the salvage."""
        ids = {topic.name: topic.id for topic in noted}
        views = existing(old, self._changed_topics())
        there = [
            Partition(name, i)
            for name, view in views.items()
            if ids.get(name) in (None, view.id)
            for i in view.partitions
        ]
        if not there:
            return {}
        ends = self._raise_fence(old, views, there, "align").ends
        before = left_by(self.journal, "salvage", Salvaged)
        saved = before.ends.by_partition()
        grown = {p: (saved.get(p, Offset(0)), end) for p, end in sorted(ends.items()) if end > saved.get(p, 0)}
        if missing := self._missing_salvage(before):
            self.say(f"align: {missing} is not on this machine: what {old.name} still has of it is saved here, too")
            topics = {name: Topic(id=view.id, partitions=len(view.partitions)) for name, view in views.items()}
            for p, (start, end) in tails(self.statuses(), topics, ends).items():
                grown[p] = (min(start, grown[p][0]) if p in grown else start, end)
        if not grown:
            return {}
        number = 1 if missing else before.parts + 1
        while self._folder(_part(number)).exists():  # of an unfinished attempt
            number += 1
        found = self._save(grown, _part(number))
        ends_now = Offsets.of({**saved, **{p: end for p, (_, end) in grown.items()}})
        self.journal.keep("salvage", Salvaged(ends=ends_now, parts=number))
        shown = self._shown(grown, found)
        return {"grown_since": shown["salvaged"], "saved_again": shown["records"], "folder": _part(number)}

    def _missing_salvage(self, before: Salvaged) -> str:
        """A salvage folder that is not on this host. Empty: all are."""
        wanted = [_part(1)] if self.journal.run.plan.discarded else []
        wanted += [_part(before.parts)] if before.parts > 1 else []
        return next((str(self._folder(name)) for name in wanted if not (self._folder(name) / MANIFEST).is_file()), "")

    def _points(self, old: ClusterClient, strategy: Strategy) -> dict[Partition, Offset]:
        ends = left_by(self.journal, "salvage", Salvaged).ends.by_partition()
        chosen = {t for t, s in self.journal.run.plan.strategies.items() if s is strategy}
        found = tails(self.statuses(), self._old_source(old)[0], ends)
        # Added partitions are saved and stay: a cut would leave nothing.
        recorded = self.statuses().keys()
        return {p: start for p, (start, _) in found.items() if p.topic in chosen and p in recorded}

    def _placed(self, old: ClusterClient, points: Mapping[Partition, Offset]) -> dict[Partition, tuple[int, ...]]:
        placed = self.journal.kept("align", Placed)
        if placed is None:
            now = placements(old, {p.topic for p in points}) if points else {}
            placed = Placed.of({p: now[p].replicas for p in points})
            self.journal.keep("align", placed)
        return placed.by_partition()

    def _changed_topics(self) -> list[str]:
        return [t for t, s in self.journal.run.plan.strategies.items() if s is not Strategy.NONE]

    def _recreate(self, old: ClusterClient, new: ClusterClient, topics: tuple[OldTopic, ...]) -> None:
        salvaged = left_by(self.journal, "salvage", Salvaged).ends.by_partition()
        widths = {name: len(v.partitions) for name, v in existing(new, [t.name for t in topics]).items()}
        for topic in topics:
            if topic.name not in widths:
                continue  # deleted by hand since the plan
            view = existing(old, [topic.name]).get(topic.name)
            if view is not None and view.id == topic.id:
                self._refuse_if_grown(old, view, salvaged)
                delete_topic(old, topic.name, topic.id)
            anew = NewTopic(
                name=topic.name,
                partitions=widths[topic.name],
                replication_factor=topic.replication_factor,
                configs=dict(topic.settings),
            )
            if topic.name in create_topics(old, [anew]):  # existed already: an earlier attempt, or a client
                self._refuse_a_poorer(old, anew)

    def _noted(self, old: ClusterClient, doomed: list[str]) -> tuple[OldTopic, ...]:
        """Recorded before the first deletion: a crash must not lose settings."""
        noted = self.journal.kept("align", OldTopics)
        if noted is None:
            settings, views = describe_configs(old, doomed), existing(old, doomed)
            noted = OldTopics(
                topics=tuple(
                    OldTopic(
                        name=topic,
                        id=views[topic].id,
                        replication_factor=views[topic].replication_factor,
                        settings=dict(sorted(settings[topic].overrides.items())),
                    )
                    for topic in sorted(settings.keys() & views.keys())
                )
            )
            self.journal.keep("align", noted)
        return noted.topics

    def _refuse_a_poorer(self, old: ClusterClient, ours: NewTopic) -> None:
        """Clients can auto-create a just-deleted topic with broker defaults."""
        view = existing(old, [ours.name]).get(ours.name)
        if view is None:
            raise Unreachable(f"cluster {old.name}, topic {ours.name}: its brokers do not agree whether it exists")
        if view.replication_factor >= ours.replication_factor and len(view.partitions) <= ours.partitions:
            return
        raise Refused(
            f"failback {self.journal.run_id}: topic {ours.name} on {old.name} is not as it was",
            [
                f"somebody created it in the moment that it was deleted: it has {len(view.partitions)} partition(s), "
                f"replication factor {view.replication_factor}, not {ours.partitions} and {ours.replication_factor}. "
                "Clients that ask for it do so where auto.create.topics.enable is on: switch that off or stop them, "
                "delete the topic, and resume"
            ],
        )

    def _refuse_if_grown(self, old: ClusterClient, topic: TopicView, salvaged: Mapping[Partition, Offset]) -> None:
        """Only salvaged records may be deleted. Checked last, added partitions included."""
        now = list_offsets(old, [Partition(topic.name, i) for i in topic.partitions], Point.LOG_END)
        grown = [f"{p} from {salvaged.get(p, 0)} to {end}" for p, end in now.items() if end > salvaged.get(p, 0)]
        if grown:
            raise Refused(
                f"failback {self.journal.run_id}: topic {topic.name} on {old.name} is not deleted",
                [
                    f"it has grown since its tail was salvaged: {some(grown)}: somebody writes in spite of the fence. "
                    "End that and resume: what has come since is salvaged then, too"
                ],
            )
