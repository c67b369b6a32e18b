"""Failback steps that take the old source's logs back."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirror_core.decide.failback_plan import build_tails_fact
from mirror_core.decide.mirror_snapshot import ClusterTopic, join_limited
from mirror_core.decide.parity_result import NOTHING_REASONS
from mirror_core.decide.truncation import (
    REPLICA_STRATEGIES,
    TRUNCATING_STRATEGIES,
    find_divergent_tails,
    find_lost_beginnings,
    find_wider_topics,
    is_recreated,
    select_created,
)
from mirror_core.evidence.run_report import write_salvage_report
from mirror_core.kafka.authorization_probe import probe_topic_rights
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.cluster_info import describe_quorum
from mirror_core.kafka.log_offsets import (
    OffsetPoint,
    explain_missing_offset,
    list_offsets,
    list_points_with_retry,
)
from mirror_core.kafka.reassignment import describe_placements
from mirror_core.kafka.topic_existence import find_existing_topics
from mirror_core.kafka.topics import NewTopic, create_topics, delete_topic, describe_configs
from mirror_core.mirrors.old_source_fence import list_since_offsets, with_uncopied
from mirror_core.model.errors import Indeterminate, Refused, Unreachable
from mirror_core.model.mirror import PartitionStatus
from mirror_core.model.names import Offset, Partition, PartitionOffsets, get_base_name
from mirror_core.model.parity_verdict import ParityRange, ParityResult, SalvagedPartition, SalvageMatch
from mirror_core.model.pending_fence import FenceAction
from mirror_core.model.run import FailbackStrategy, StepEvidence
from mirror_core.model.text import format_count
from mirror_core.model.timing import TIMEOUTS
from mirror_core.parity.salvage import MANIFEST
from mirror_core.rights.required_acls import find_lacking_strategy_rights
from mirror_core.runbook.fence_actions import CommandFence, LiftFile
from mirror_core.runbook.forecast_check import count_outcome_later
from mirror_core.runbook.run_services import StepContext
from mirror_core.runbook.step_records import (
    OriginalReplicas,
    RecreatedTopic,
    RecreatedTopics,
    SalvageResult,
    read_output,
)
from mirror_core.runbook.truncation_strategies import (
    choose_remaining_brokers,
    plan_parking,
    refuse_growth,
    truncate_by_replica,
    truncate_offline,
)
from mirror_core.state.active_cluster import forget_lift
from mirror_core.state.state_records import PartitionRecord
from mirror_core.sync.fence_acls import VerifiedFence, apply_fence

_BEGINNINGS_FOLDER: Final = "salvage-beginnings"
_LOG_MOVED_KINDS: Final = frozenset({"log start", "log end"})


def _format_later(salvage_result: SalvageResult) -> StepEvidence:
    """Also what an attempt that was cut off has saved."""
    if not salvage_result.later_folders:
        return {}
    counted = {"records_grown_since": salvage_result.grown_records} if salvage_result.grown_records else {}
    return {**counted, "folder": salvage_result.later_folders}


def _salvage_folder_name(number: int) -> str:
    return "salvage" if number == 1 else f"salvage-{number}"


class TailSteps(StepContext):
    __slots__ = ()

    def salvage(self) -> StepEvidence:
        with ClusterClient(self.link.source) as old:
            topics, partitions = self._list_old_source(old)
            fence = self._raise_fence(old, self._topic_names(), partitions, "salvage")
            self._record_fence(old, fence)
            starts = list_offsets(old, [p for p in partitions if p in self.statuses()], OffsetPoint.START)
        ends, beginnings = dict(fence.ends), find_lost_beginnings(self.statuses(), topics, starts)
        compared = self._compare_below_lmo(topics, ends)
        tail_ranges = find_divergent_tails(self.statuses(), topics, ends)
        self._refuse_unapproved(tail_ranges)
        saved_tails = self._save_tails(tail_ranges, "salvage")
        saved_beginnings = self._save_tails(beginnings, _BEGINNINGS_FOLDER)
        self.journal.save_checkpoint("salvage", SalvageResult(ends=PartitionOffsets.from_mapping(ends)))
        return {
            "compared_records": compared.records if compared else 0,
            **self._format_salvage(tail_ranges, saved_tails),
            "folder": str(self._evidence_folder("salvage")) if tail_ranges else "",
            **self._format_beginnings(beginnings, saved_beginnings),
            **count_outcome_later(self.link, self.writer, tail_ranges, ends, beginnings),
        }

    def check_approval(self) -> None:
        """Refused if a log that stays has grown. Before any change: an abort is still possible."""
        salvaged = read_output(self.journal, "salvage", SalvageResult).ends.to_mapping()
        unchanged_topics = {t for t, s in self.journal.run.plan.strategies.items() if s is FailbackStrategy.NONE}
        with ClusterClient(self.link.source) as old:
            topics, partitions = self._list_old_source(old)
            self._refuse_added_partitions(topics)
            kept_partitions = [p for p in partitions if p.topic in unchanged_topics]
            current_ends = list_offsets(old, kept_partitions, OffsetPoint.LOG_END)
            self._check_rights(old)
            for strategy in REPLICA_STRATEGIES:
                if points := self._find_truncation_points(old, strategy):
                    if strategy is FailbackStrategy.REPLICA:
                        _refuse_without_majority(self, old, points)
                    plan_parking(self, old, points, strategy)
        grown = [
            f"{p} from {salvaged.get(p, 0)} to {end}" for p, end in current_ends.items() if end > salvaged.get(p, 0)
        ]
        if grown:
            raise Refused(
                f"failback {self.journal.run_id}: step align",
                [
                    f"somebody has written on {self.link.source.name} in spite of the fence, in topics of which "
                    f"nothing was to be discarded: {join_limited(grown)}. Abort this run and plan again"
                ],
                reason_code="old_source_grown",
            )

    def _refuse_added_partitions(self, topics: Mapping[str, ClusterTopic]) -> None:
        with ClusterClient(self.link.destination) as new:
            new_topics = {
                n: ClusterTopic(id=v.id, partitions=len(v.partitions))
                for n, v in find_existing_topics(new, topics).items()
            }
        strategies = self.journal.run.plan.strategies
        wider_lines = [
            f"topic {topic} has {had} partitions on {self.link.source.name} and {has} on {self.link.destination.name}, "
            f"and strategy {strategies[topic]} takes none away"
            for topic, (had, has) in find_wider_topics(topics, new_topics).items()
            if strategies[topic] is not FailbackStrategy.RECREATE
        ]
        if wider_lines:
            reason = f"{join_limited(wider_lines)}. Abort this run and plan again"
            raise Refused(f"failback {self.journal.run_id}: step align", [reason], reason_code="topic_narrower")

    def _check_rights(self, old: ClusterClient) -> None:
        strategies = self.journal.run.plan.strategies
        on_cluster, on_topics = probe_topic_rights(old, strategies)
        if missing_rights := [*find_lacking_strategy_rights(strategies, on_cluster or frozenset(), on_topics)]:
            name = self.link.source.name
            advice = f"`mirrorbook cluster check {name}` names the grants; then resume, or abort"
            raise Refused(
                f"failback {self.journal.run_id}: step align",
                [f"cluster {name}: {line}, which the control principal lacks; {advice}" for line in missing_rights],
                reason_code="failback_rights_lacking",
            )

    def align(self) -> StepEvidence:
        strategies = self.journal.run.plan.strategies
        doomed = [t for t, s in strategies.items() if s is FailbackStrategy.RECREATE]
        with ClusterClient(self.link.source) as old, ClusterClient(self.link.destination) as new:
            topics = self._topics_to_recreate(old, doomed)
            saved_evidence = {**self.save_missing_beginnings(old), **self._save_growth(old, topics)}
            self._recreate_topics(old, new, topics)
            points = {strategy: self._find_truncation_points(old, strategy) for strategy in TRUNCATING_STRATEGIES}
            original_replicas = self._original_replicas(old, list(itertools.chain(*points.values())))
            truncated: dict[str, str | int] = {}
            for strategy in REPLICA_STRATEGIES:
                truncated |= truncate_by_replica(self, old, points[strategy], original_replicas, strategy)
            truncated |= truncate_offline(self, old, points[FailbackStrategy.OFFLINE], original_replicas)
        return {
            "recreated": len(topics),
            "topics": join_limited(topic.name for topic in topics) or "none",
            **saved_evidence,
            **truncated,
        }

    def statuses(self) -> dict[Partition, PartitionStatus]:
        return select_created(super().statuses())

    def save_missing_beginnings(self, old: ClusterClient) -> dict[str, str | int]:
        """Before they are deleted, if another machine has them."""
        if (self._evidence_folder(_BEGINNINGS_FOLDER) / MANIFEST).is_file():
            return {}
        topics, partitions = self._list_old_source(old)
        cut = [p for p in partitions if p in self.statuses() and self.statuses()[p].deleted_until is not None]
        [result] = list_points_with_retry(old, cut, [OffsetPoint.START])
        if unseen := [p for p in cut if p not in result.offsets]:
            reasons = [f"{p} ({explain_missing_offset(old.name, p, result)})" for p in unseen]
            raise Indeterminate(
                f"failback {self.journal.run_id}: {self._evidence_folder(_BEGINNINGS_FOLDER)} is not on this machine, "
                f"and what {old.name} still has of the records in it is not known: {join_limited(reasons)}. "
                "Start the brokers that hold these partitions, or resume on the machine that has the folder"
            )
        if not (beginnings := find_lost_beginnings(self.statuses(), topics, result.offsets)):
            return {}
        self.print_line(
            f"{self._evidence_folder(_BEGINNINGS_FOLDER)} is not on this machine: what {old.name} still has of it is "
            "saved here, too"
        )
        return self._format_beginnings(beginnings, self._save_tails(beginnings, _BEGINNINGS_FOLDER))

    # -- inside --------------------------------------------------------------------------------------------------

    def _topic_names(self) -> list[str]:
        return sorted({p.topic for p in self.statuses()})

    def _list_old_source(self, client: ClusterClient) -> tuple[dict[str, ClusterTopic], list[Partition]]:
        views = find_existing_topics(client, self._topic_names())
        partitions = [Partition(name, index) for name, v in sorted(views.items()) for index in sorted(v.partitions)]
        return {name: ClusterTopic(id=v.id, partitions=len(v.partitions)) for name, v in views.items()}, partitions

    def _raise_fence(
        self, old: ClusterClient, topics: Collection[str], partitions: Collection[Partition], step: str
    ) -> VerifiedFence:
        lift_file = LiftFile(self, prints_command=False)
        return apply_fence(
            self.link,
            self.writer,
            old,
            topics,
            partitions,
            before_deny=lift_file,
            close_cluster=CommandFence(self, step, lift_file),
        )

    def _record_fence(self, old: ClusterClient, fence: VerifiedFence) -> None:
        if fence.authorizer or fence.command:
            forget_lift(self.link.source, get_base_name(self.link.mirror.name), TIMEOUTS.old_source_response_s)
        pending_fence = self.writer.state.pending_fences.get(self.link.mirror.name)
        if pending_fence is None or pending_fence.action is not FenceAction.APPLY:
            return
        updated = pending_fence.add_since_offsets(
            list_since_offsets(self.link, self.writer.state, old, pending_fence, fence.ends)
        )
        if (fence.authorizer or fence.command) and updated.applied_at_ms is None:
            updated = replace(
                updated,
                applied_at_ms=self.writer.now_ms(),
                log_ends=PartitionOffsets.from_mapping(fence.ends),
                by_command=fence.command,
                trouble=None,
            )
        if updated.applied_at_ms is not None:
            updated = with_uncopied(self.link, self.writer, old, updated, self.statuses())
        if updated != pending_fence:
            self.writer.put(updated)

    def _compare_below_lmo(
        self, topics: Mapping[str, ClusterTopic], ends: Mapping[Partition, Offset]
    ) -> ParityResult | None:
        """An unclean election may have changed history. None: nothing to compare."""
        statuses = self.statuses()
        partitions = [p for p in ends if p in statuses and not is_recreated(statuses[p], topics)]
        with ClusterClient(self.link.source) as old, ClusterClient(self.link.destination) as new:
            old_starts, new_starts = (list_offsets(client, partitions, OffsetPoint.START) for client in (old, new))
        ranges = [
            ParityRange(partition=p, start=start, end=end, stopped_at=end)
            for p in partitions
            if (start := max(old_starts[p], new_starts[p])) < (end := Offset(min(ends[p], statuses[p].lmo or 0)))
        ]
        if not ranges:
            return None
        folder = self.services.run_dir(self.journal.run_id) / "compare"
        # The new primary's retention goes on: the old source's log is in question.
        parity = self.services.choose_parity(ranges)
        result = parity(self.link.mirror.destination_identity, self.link.mirror.source_identity, ranges, folder)
        doubts = [reason for reason in result.reasons if reason not in NOTHING_REASONS]
        doubts += [f"{f.partition}: {f.detail}" for f in result.findings if f.kind in _LOG_MOVED_KINDS]
        if doubts:
            raise Indeterminate(
                f"failback {self.journal.run_id}: from where on {self.link.source.name} differs is not known: "
                f"{'; '.join(doubts[:5])}. Mend it, resume"
            )
        differs = {
            r.partition: offset for r in ranges if (offset := result.verified_ends.get(r.partition, r.start)) < r.end
        }
        changed_statuses = [
            replace(statuses[r.partition], differs_at=differs.get(r.partition))
            for r in ranges
            if statuses[r.partition].differs_at != differs.get(r.partition)
        ]
        if changed_statuses:
            self.writer.put(*(PartitionRecord(self.link.mirror.name, status) for status in changed_statuses))
        return result

    def _refuse_unapproved(self, tail_ranges: Mapping[Partition, tuple[Offset, Offset]]) -> None:
        current_fact, plan = build_tails_fact(tail_ranges), self.journal.run.plan
        approved = next((fact for fact in plan.bound_facts if fact.name == current_fact.name), None)
        if approved != current_fact:
            statuses = self.statuses()
            lower = [f"{p} from offset {o}" for p, s in statuses.items() if (o := s.differs_at) is not None]
            reason = (
                f"what only {self.link.source.name} has is not what was approved: that was "
                f"{approved.value if approved else 'unknown'}, it is {current_fact.value}"
            )
            below = f"; below the last mirrored offset it differs in {join_limited(lower)}" if lower else ""
            raise Refused(
                f"failback {self.journal.run_id}: step salvage",
                [f"{reason}{below}. Abort this run and plan again"],
                reason_code="tails_not_approved",
            )

    def _save_tails(
        self, tail_ranges: Mapping[Partition, tuple[Offset, Offset]], name: str
    ) -> Mapping[Partition, SalvagedPartition]:
        if not tail_ranges:
            return {}
        ranges = [ParityRange(partition=p, start=start, end=end) for p, (start, end) in tail_ranges.items()]
        old, new = self.link.mirror.source_identity, self.link.mirror.destination_identity
        saved = self.services.salvage(old, ranges, self._evidence_folder(name), new)
        write_salvage_report(
            self._evidence_folder(name), list(saved.values()), run=self.journal.run_id, old=old.name, new=new.name
        )
        return saved

    def _evidence_folder(self, name: str) -> Path:
        return self.services.run_dir(self.journal.run_id) / name

    def _format_salvage(
        self, tail_ranges: Mapping[Partition, tuple[Offset, Offset]], saved: Mapping[Partition, SalvagedPartition]
    ) -> dict[str, str | int]:
        tailed = join_limited(
            f"{p} [{start}, {end}): {format_count(saved[p].records, 'record')}"
            for p, (start, end) in tail_ranges.items()
        )
        return {
            "records": sum(s.records for s in saved.values()),
            "partitions": len(tail_ranges),
            "salvaged": tailed or "nothing: there is no tail",
            **{
                match.value.replace(" ", "_"): sum(s.matches.get(match, 0) for s in saved.values())
                for match in SalvageMatch
                if saved
            },
        }

    def _format_beginnings(
        self, beginnings: Mapping[Partition, tuple[Offset, Offset]], saved: Mapping[Partition, SalvagedPartition]
    ) -> dict[str, str | int]:
        if not beginnings:
            return {}
        return {
            "beginnings_salvaged": self._format_salvage(beginnings, saved)["salvaged"],
            "beginnings_records": sum(part.records for part in saved.values()),
            "beginnings_folder": str(self._evidence_folder(_BEGINNINGS_FOLDER)),
        }

    def _save_growth(self, old: ClusterClient, recreated_topics: tuple[RecreatedTopic, ...]) -> StepEvidence:
        ids = {topic.name: topic.id for topic in recreated_topics}
        views = find_existing_topics(old, self._list_changed_topics())
        partitions = [
            Partition(name, i)
            for name, view in views.items()
            if ids.get(name) in (None, view.id)
            for i in view.partitions
        ]
        if not partitions:
            return {}
        ends = self._raise_fence(old, views, self._exclude_cut(old, partitions), "align").ends
        salvage_result = read_output(self.journal, "salvage", SalvageResult)
        saved = salvage_result.ends.to_mapping()
        grown = {p: (saved.get(p, Offset(0)), end) for p, end in sorted(ends.items()) if end > saved.get(p, 0)}
        if missing := self._find_missing_salvage(salvage_result):
            self.print_line(
                f"align: {missing} is not on this machine: what {old.name} still has of it is saved here, too"
            )
            topics = {name: ClusterTopic(id=view.id, partitions=len(view.partitions)) for name, view in views.items()}
            for p, (start, end) in find_divergent_tails(self.statuses(), topics, ends).items():
                grown[p] = (min(start, grown[p][0]) if p in grown else start, end)
        if not grown:
            return _format_later(salvage_result)
        number = 1 if missing else salvage_result.parts + 1
        while self._evidence_folder(_salvage_folder_name(number)).exists():  # of an unfinished attempt
            number += 1
        saved_tails = self._save_tails(grown, _salvage_folder_name(number))
        ends_now = PartitionOffsets.from_mapping({**saved, **{p: end for p, (_, end) in grown.items()}})
        salvage_evidence = self._format_salvage(grown, saved_tails)
        records = sum(part.records for part in saved_tails.values())
        updated = SalvageResult(
            ends=ends_now,
            parts=number,
            later_folders=(*salvage_result.later_folders, str(self._evidence_folder(_salvage_folder_name(number)))),
            grown_records=salvage_result.grown_records + (0 if missing else records),
        )
        self.journal.save_checkpoint("salvage", updated)
        # What is saved again is no more than the salvage has counted.
        ranges_key, records_key = (
            ("saved_again", "records_saved_again") if missing else ("grown_since", "records_grown_since")
        )
        return {
            ranges_key: salvage_evidence["salvaged"],
            records_key: records,
            **_format_later(updated),
        }

    def _exclude_cut(self, old: ClusterClient, partitions: Collection[Partition]) -> list[Partition]:
        """Cut logs need not stand still: a transaction in them may never get its marker."""
        points = {p: o for s in TRUNCATING_STRATEGIES for p, o in self._find_truncation_points(old, s).items()}
        ends = list_offsets(old, points, OffsetPoint.LOG_END)
        return [p for p in partitions if p not in points or ends[p] > points[p]]

    def _find_missing_salvage(self, salvage_result: SalvageResult) -> str:
        folder_names = [_salvage_folder_name(1)] if self.journal.run.plan.partitions else []  # its tails
        folder_names += [_salvage_folder_name(salvage_result.parts)] if salvage_result.parts > 1 else []
        return next(
            (
                str(self._evidence_folder(name))
                for name in folder_names
                if not (self._evidence_folder(name) / MANIFEST).is_file()
            ),
            "",
        )

    def _find_truncation_points(self, old: ClusterClient, strategy: FailbackStrategy) -> dict[Partition, Offset]:
        ends = read_output(self.journal, "salvage", SalvageResult).ends.to_mapping()
        strategy_topics = {t for t, s in self.journal.run.plan.strategies.items() if s is strategy}
        tail_ranges = find_divergent_tails(self.statuses(), self._list_old_source(old)[0], ends)
        # Added partitions are saved and stay: a cut would leave nothing.
        recorded = self.statuses().keys()
        return {p: start for p, (start, _) in tail_ranges.items() if p.topic in strategy_topics and p in recorded}

    def _original_replicas(
        self, old: ClusterClient, partitions: Collection[Partition]
    ) -> dict[Partition, tuple[int, ...]]:
        replicas = self.journal.load_checkpoint("align", OriginalReplicas)
        if replicas is None:
            current = describe_placements(old, {p.topic for p in partitions}) if partitions else {}
            replicas = OriginalReplicas.from_replicas({p: current[p].replicas for p in partitions})
            self.journal.save_checkpoint("align", replicas)
        return replicas.by_partition()

    def _list_changed_topics(self) -> list[str]:
        return [t for t, s in self.journal.run.plan.strategies.items() if s is not FailbackStrategy.NONE]

    def _recreate_topics(self, old: ClusterClient, new: ClusterClient, topics: tuple[RecreatedTopic, ...]) -> None:
        widths = {name: len(v.partitions) for name, v in find_existing_topics(new, [t.name for t in topics]).items()}
        for topic in topics:
            if topic.name not in widths:
                continue  # deleted by hand since the plan
            view = find_existing_topics(old, [topic.name]).get(topic.name)
            if view is not None and view.id == topic.id:
                deleted_partitions = [Partition(topic.name, i) for i in view.partitions]  # added ones included
                refuse_growth(self, old, deleted_partitions, f"topic {topic.name} on {old.name} is not deleted")
                delete_topic(old, topic.name, topic.id)
            new_topic = NewTopic(
                name=topic.name,
                partitions=widths[topic.name],
                replication_factor=topic.replication_factor,
                configs=dict(topic.settings),
            )
            if topic.name in create_topics(old, [new_topic]):  # existed already: an earlier attempt, or a client
                self._refuse_changed_topic(old, new_topic)

    def _topics_to_recreate(self, old: ClusterClient, doomed: list[str]) -> tuple[RecreatedTopic, ...]:
        """Recorded before the first deletion: a crash must not lose settings."""
        recorded = self.journal.load_checkpoint("align", RecreatedTopics)
        if recorded is None:
            settings, views = describe_configs(old, doomed), find_existing_topics(old, doomed)
            recorded = RecreatedTopics(
                topics=tuple(
                    RecreatedTopic(
                        name=topic,
                        id=views[topic].id,
                        replication_factor=views[topic].replication_factor,
                        settings=dict(sorted(settings[topic].overrides.items())),
                    )
                    for topic in sorted(settings.keys() & views.keys())
                )
            )
            self.journal.save_checkpoint("align", recorded)
        return recorded.topics

    def _refuse_changed_topic(self, old: ClusterClient, expected_topic: NewTopic) -> None:
        """Clients can auto-create a just-deleted topic with broker defaults."""
        view = find_existing_topics(old, [expected_topic.name]).get(expected_topic.name)
        if view is None:
            raise Unreachable(
                f"cluster {old.name}, topic {expected_topic.name}: its brokers do not agree whether it exists"
            )
        if (
            view.replication_factor >= expected_topic.replication_factor
            and len(view.partitions) <= expected_topic.partitions
        ):
            return
        raise Refused(
            f"failback {self.journal.run_id}: topic {expected_topic.name} on {old.name} is not as it was",
            [
                f"somebody created it in the moment that it was deleted: it has"
                f" {format_count(len(view.partitions), 'partition')}, replication"
                f" factor {view.replication_factor}, not {expected_topic.partitions} and"
                f" {expected_topic.replication_factor}. Clients that ask for it do so where auto.create.topics.enable"
                " is on: switch that off or stop them, delete the topic, and resume"
            ],
            reason_code="topic_made_by_client",
        )


def _refuse_without_majority(context: StepContext, old: ClusterClient, points: Mapping[Partition, Offset]) -> None:
    """Without a controller quorum nobody would elect the short replica."""
    current, controllers = describe_placements(old, {p.topic for p in points}), describe_quorum(old)
    for leader in sorted(set(choose_remaining_brokers({p: current[p] for p in points}).values())):
        if controllers is None or controllers.has_majority_without(leader):
            continue
        missing_voters = ", ".join(map(str, sorted(controllers.voters - controllers.alive)))
        raise Refused(
            f"failback {context.journal.run_id}: step align",
            [
                f"broker {leader} would have to be stopped, and is needed: of {len(controllers.voters)} controllers of "
                f"{old.name} {len(controllers.alive)} are alive, without it they have no majority to elect anybody. "
                + (f"Start node {missing_voters} first, then resume; or abort" if missing_voters else "Abort")
                + ", and plan with offline or recreate"
            ],
            reason_code="controllers_too_few",
        )
