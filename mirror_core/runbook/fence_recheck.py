"""Probes all source brokers before promotion; rechecks the fence until the run ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.fence_state import count_offsets
from mirror_core.decide.forecast_accuracy import LossCount, explain_uncopied_records, find_not_copied
from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.decide.source_probe import SourceReply, explain_doubt, find_contradictions, format_ways_on
from mirror_core.kafka.acl_requests import AuthorizerOff, describe_acls, describe_acls_on_each_broker
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.log_offsets import OffsetPoint, list_known_offsets
from mirror_core.mirrors.old_source_fence import deny_all_writers, list_since_offsets, wait_until_still, with_uncopied
from mirror_core.model.acl import Acl, AclPurpose
from mirror_core.model.errors import ConnectionRejected, LostOwnership, MirrorError, Refused, Unreachable
from mirror_core.model.findings import Finding
from mirror_core.model.names import NO_OFFSETS, Offset, Partition, PartitionOffsets
from mirror_core.model.pending_fence import LateRanges, PendingFence
from mirror_core.model.run import RunMode, StepEvidence, StepState
from mirror_core.model.text import format_time
from mirror_core.model.timing import TIMEOUTS, Moment
from mirror_core.runbook.fence_actions import LIFT_COMMAND_KEY, CommandFence, LiftFile, read_lift_file
from mirror_core.runbook.run_services import StepContext
from mirror_core.state.mirror_link import MirrorLink, check_source_id
from mirror_core.state.point_of_no_return import PromotionCheck, SourceReturned, is_past_no_return
from mirror_core.sync.acl_ledger import list_entries
from mirror_core.sync.fence_acls import build_denials, check_stillness, format_missing_denials, list_unfenced_brokers
from mirror_core.sync.fence_command import FenceCommandFailed

PROBE_EVIDENCE_KEY: Final = "source before promotion"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionProbe(SourceReply):
    began: Moment = field(default_factory=Moment, compare=False)


def probe_source(link: MirrorLink, denials: Iterable[Acl], partitions: Collection[Partition]) -> PromotionProbe:
    expected_denials, began = frozenset(denials), Moment()
    try:
        with ClusterClient(link.source, timeout_s=TIMEOUTS.plan_response_s) as source:
            cluster_id = source.metadata(()).cluster_id
            if cluster_id != link.mirror.source_id:
                return PromotionProbe(other_cluster_id=cluster_id, began=began)
            return replace(_probe_brokers(source, expected_denials, partitions), began=began)
    except ConnectionRejected as error:  # up, but denies us
        return PromotionProbe(unknowns=(str(error),), began=began)
    except Unreachable as error:
        return PromotionProbe(silent_because=str(error), began=began)
    except MirrorError as error:  # up, such as with a changed password
        return PromotionProbe(unknowns=(str(error),), began=began)


def _probe_brokers(
    source: ClusterClient, expected_denials: frozenset[Acl], partitions: Collection[Partition]
) -> PromotionProbe:
    unsaid, bare_brokers, ends, showing_brokers = list[str](), list[str](), dict[Partition, Offset](), 0
    if expected_denials:
        try:
            acls_by_broker = describe_acls_on_each_broker(source)
        except MirrorError as error:
            unsaid.append(f"denials: {error}")
        else:
            unsaid += [
                f"broker {b}: {reply}" for b, reply in sorted(acls_by_broker.items()) if isinstance(reply, MirrorError)
            ]
            bare_brokers = format_missing_denials(source.name, acls_by_broker, expected_denials)
            showing_brokers = len(acls_by_broker) - len(unsaid) - len(bare_brokers)
    fenced = showing_brokers > 0 and not unsaid and not bare_brokers
    try:
        ends = list_known_offsets(source, partitions, OffsetPoint.LOG_END, within_s=TIMEOUTS.new_leader_s)
    except MirrorError as error:
        unsaid.append(f"log ends: {error}")
    else:
        if unknown_partitions := sorted(set(partitions) - ends.keys()):
            unsaid.append(f"no log end of {join_limited(unknown_partitions)}")
    return PromotionProbe(
        unfenced_brokers=tuple(bare_brokers),
        unknowns=tuple(unsaid),
        fenced_broker_count=showing_brokers,
        is_fenced=fenced,
        log_ends=ends,
    )


MAX_LISTED_PARTITIONS: Final = 20


def refuse_if_lifted(context: StepContext) -> bool:
    """Refused if the fence was lifted by its file. Returns whether the file is here."""
    lift_file = read_lift_file(context.services, context.journal.run_id)
    if lift_file is not None and lift_file.lifted_ms is not None:
        raise Refused(
            f"run {context.journal.run_id}: promotion",
            [
                f"its fence on {context.link.source.name} was lifted by its file at {format_time(lift_file.lifted_ms)},"
                " so applications may have written there since: abort this run, and plan again"
            ],
            reason_code="fence_lifted_by_file",
        )
    return lift_file is not None


def refuse_if_unfenced(context: StepContext) -> None:
    refuse_if_lifted(context)
    name, source = context.link.mirror.name, context.link.source.name
    denials = {e.acl for e in list_entries(context.writer, name, source, AclPurpose.FENCE)}
    if not denials:
        return
    with ClusterClient(context.link.source) as client:
        acls = describe_acls(client)
    missing = frozenset[Acl]() if isinstance(acls, AuthorizerOff) else denials - acls.entries
    if missing:
        raise Refused(
            f"run {context.journal.run_id}: behind its fence",
            [
                f"{len(missing)} denials of its fence on {source} are gone, such as {min(missing)}, so applications "
                "may have written there since: abort this run, and plan again"
            ],
            reason_code="fence_removed",
        )


def probe_uncontradicted(
    context: StepContext, denials: Collection[Acl], drained: Mapping[Partition, Offset]
) -> tuple[PromotionProbe, bool]:
    """As `refuse_if_lifted`. Refused, too, if the source was written after the drain."""
    name = context.link.source.name
    probe, has_file = probe_source(context.link, denials, drained), refuse_if_lifted(context)
    if reasons := tuple(find_contradictions(probe, name, drained)):
        raise Refused(
            f"run {context.journal.run_id}: promotion, since {name} accepted writes behind the fence; abort this run, "
            "find who writes there, and plan again",
            reasons[:MAX_LISTED_PARTITIONS],
            reason_code="written_behind_fence",
        )
    return probe, has_file


def close_again(context: StepContext, step: str, topic_names: Collection[str]) -> bool:
    """Call fence_command again: a copy of the file may have opened the source unseen."""
    return CommandFence(context, step, LiftFile(context, needed=False), once=True)(topic_names)


def refuse_in_doubt(context: StepContext, probe: PromotionProbe, *, is_fenced: bool, has_file: bool) -> None:
    if reason := explain_doubt(
        probe, context.link.source.name, context.link.mirror.name, fence_held=is_fenced, has_fence_file=has_file
    ):
        raise Refused(f"run {context.journal.run_id}: promotion", [reason], reason_code="fence_in_doubt")


def apply_fence(
    context: StepContext,
    pending_fence: PendingFence,
    topic_names: Collection[str],
    partitions: Collection[Partition],
    lift_file: LiftFile,
    earlier_ends: PartitionOffsets = NO_OFFSETS,
) -> StepEvidence:
    cluster = pending_fence.cluster
    try:
        with ClusterClient(context.link.source, timeout_s=TIMEOUTS.lost_source_s) as source:
            check_source_id(context.link, source)
            denials = deny_all_writers(context.link, context.writer, source, topic_names, before_deny=lift_file)
            is_closed = isinstance(denials, AuthorizerOff) and CommandFence(context, "stand", lift_file, once=True)(
                topic_names
            )
            ends = {
                **earlier_ends.to_mapping(),
                **(check_stillness if is_closed else wait_until_still)(source, partitions),
            }
            pending_fence = pending_fence.add_since_offsets(
                list_since_offsets(context.link, context.writer.state, source, pending_fence, ends)
            )
            pending_fence = with_uncopied(
                context.link, context.writer, source, pending_fence, context.statuses(), before_deny=lift_file
            )
    except LostOwnership:
        raise
    except MirrorError as error:
        context.writer.put(pending_fence.record_failure(error))
        file_evidence = {LIFT_COMMAND_KEY: lift_file.text} if lift_file.text else {}
        return {"fence": "pending: put up the moment it answers", "source": str(error), **file_evidence}
    file_line = {LIFT_COMMAND_KEY: lift_file.text} if lift_file.text else {}
    if isinstance(denials, AuthorizerOff) and not is_closed:
        trouble = Finding("fence_unavailable", cluster, authorizer=denials.configured, partitions=())
        context.writer.put(replace(pending_fence, trouble=trouble, log_ends=PartitionOffsets.from_mapping(ends)))
        return {"fence": f"impossible: the source {denials.text}; it is only watched"}
    context.writer.put(
        replace(
            pending_fence,
            applied_at_ms=context.writer.now_ms(),
            log_ends=PartitionOffsets.from_mapping(ends),
            by_command=is_closed,
        )
    )
    if isinstance(denials, AuthorizerOff):
        return {"fence": "applied", "fence_command": "done", **file_line}
    return {"fence": "applied", "denials": len(denials), **file_line}


def reapply_fence(
    context: StepContext, topic_names: Collection[str], partitions: Collection[Partition]
) -> StepEvidence:
    """From promotion on. Recorded first: after a crash the next conductor looks for what the source accepted."""
    pending_fence, cluster = context.writer.state.pending_fences[context.link.mirror.name], context.link.source.name
    ends, was_lifted = pending_fence.log_ends, context.journal.run.plan.mode is RunMode.PLANNED
    if pending_fence.applied_at_ms is not None:
        lift_file = read_lift_file(context.services, context.journal.run_id)
        try:
            if (lift_file is None or lift_file.lifted_ms is None) and _is_fence_standing(
                context, pending_fence, topic_names
            ):
                return {}
        except LostOwnership:
            raise
        except MirrorError as error:  # a source that died since delays nobody
            _doubt_source(context)
            return {"fence": f"{cluster} was not asked again for its fence: {error}"}
        pending_fence, was_lifted = replace(pending_fence, applied_at_ms=None, log_ends=NO_OFFSETS), True
        context.writer.put(pending_fence)
    result = apply_fence(context, pending_fence, topic_names, partitions, LiftFile(context, needed=False), ends)
    if not was_lifted:  # unplanned: uncopied records are older
        return result
    late_ranges = [f"{p} [{start}, {end})" for p, (start, end) in find_late_ranges(context).items()]
    return {**result, "written_meanwhile": join_limited(late_ranges) or "nothing seen"}


def _doubt_source(context: StepContext) -> None:
    """What a source has taken is unknown unless its fence was seen just before."""
    journal = context.journal
    check = journal.load_checkpoint("promote", PromotionCheck)
    if check is None or not check.source_confirmed:
        return
    records = [journal.record(step) for step in journal.steps[journal.steps.index("promote") :]]
    seen_ms = [r.started_ms for r in records if r is not None and r.state is StepState.DONE]
    if not seen_ms or context.writer.now_ms() - max(seen_ms) > TIMEOUTS.promotion_probe_max_age_s * 1000:
        journal.save_checkpoint("promote", replace(check, source_confirmed=False))


def _is_command_fence_standing(context: StepContext, pending_fence: PendingFence, topic_names: Collection[str]) -> bool:
    """Until promotion is done the command is called again, and log ends must not have moved."""
    run = context.journal.run
    if context.journal.is_done("promote") or (
        run.plan.mode is RunMode.PLANNED and not is_past_no_return(context.writer.state, run)
    ):
        return True
    recorded = pending_fence.log_ends.to_mapping()
    with ClusterClient(context.link.source, timeout_s=TIMEOUTS.lost_source_s) as source:
        check_source_id(context.link, source)
        try:
            close_again(context, "promote", topic_names)
        except FenceCommandFailed:
            return False
        ends = list_known_offsets(source, recorded, OffsetPoint.LOG_END)
    return all(end <= recorded[p] for p, end in ends.items())


def _is_fence_standing(context: StepContext, pending_fence: PendingFence, topic_names: Collection[str]) -> bool:
    return (
        _is_command_fence_standing(context, pending_fence, topic_names)
        if pending_fence.by_command
        else not _are_denials_missing(context, topic_names)
    )


def _are_denials_missing(context: StepContext, topic_names: Collection[str]) -> bool:
    with ClusterClient(context.link.source, timeout_s=TIMEOUTS.lost_source_s) as source:
        check_source_id(context.link, source)
        return bool(list_unfenced_brokers(source, build_denials(topic_names)))


def count_lost_while_lifted(context: StepContext, is_fenced: bool) -> LossCount | None:
    pending_fence, name, accepted = (
        context.writer.state.pending_fences.get(context.link.mirror.name),
        context.link.source.name,
        count_offsets(find_late_ranges(context)),
    )
    if accepted:
        return LossCount(accepted, f"by what {name} took while its fence was lifted")
    if is_fenced and pending_fence is not None and pending_fence.applied_at_ms is None:
        return LossCount(None, f"the fence on {name} was lifted, and it was not seen since")
    return None


def refuse_uncopied_records(context: StepContext, probe: PromotionProbe) -> None:
    """Refused if a returned source has uncopied records that nobody agreed to leave there."""
    returned, pending_fence = (
        context.journal.load_checkpoint("promote", SourceReturned),
        context.writer.state.pending_fences[context.link.mirror.name],
    )
    if returned is None or pending_fence.applied_at_ms is None:
        return
    pending_fence = _complete_log_ends(context, pending_fence, probe)
    if not _was_reported(returned, pending_fence):
        returned = SourceReturned(log_ends=pending_fence.log_ends)
        context.journal.save_checkpoint("promote", returned)
    name, mirror, destination = context.link.source.name, context.link.mirror.name, context.link.destination.name
    state, statuses = context.writer.state, context.statuses()
    records = explain_uncopied_records(state.mirrors[mirror], pending_fence, statuses, state.find_observation(mirror))
    if returned.loss_confirmed or not any(records):
        return
    possession = "it has records that were" if records.known else "it may have records that were"
    reason = f"{name} answered again, and is fenced now; {possession} not copied to {destination}"
    raise Refused(
        f"run {context.journal.run_id}: promotion",
        [reason, *records.known, *records.unknown, format_ways_on(mirror, name)],
        reason_code="source_not_copied",
    )


def _complete_log_ends(context: StepContext, pending_fence: PendingFence, probe: PromotionProbe) -> PendingFence:
    recorded_ends = pending_fence.log_ends.to_mapping()
    if not probe.log_ends.keys() - recorded_ends.keys():
        return pending_fence
    pending_fence = replace(pending_fence, log_ends=PartitionOffsets.from_mapping({**probe.log_ends, **recorded_ends}))
    context.writer.put(pending_fence)
    return pending_fence


def _was_reported(returned: SourceReturned, pending_fence: PendingFence) -> bool:
    """A confirmation is about these log ends."""
    reported_ends, current_ends = returned.log_ends.to_mapping(), pending_fence.log_ends.to_mapping()
    is_covered = (
        bool(reported_ends)
        and returned.loss_confirmed
        and all(current_ends.get(p) == end for p, end in reported_ends.items())
    )
    return is_covered or returned.log_ends == pending_fence.log_ends


def find_late_ranges(context: StepContext) -> LateRanges:
    pending_fence = context.writer.state.pending_fences.get(context.link.mirror.name)
    return {} if pending_fence is None else find_not_copied(pending_fence, context.statuses())[0]
