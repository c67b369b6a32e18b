"""Probes the source before promotion: all brokers, at the same time; and the fence's state."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from mirror_core.decide.last_look import SourceReply
from mirror_core.decide.view import join_limited
from mirror_core.kafka.acls_of_each import describe_acls_on_each_broker
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.offsets import OffsetPoint, list_known_offsets
from mirror_core.model.acl import Acl
from mirror_core.model.clock import Moment
from mirror_core.model.errors import ConnectionRejected, MirrorError, Unreachable
from mirror_core.model.limits import TIMEOUTS
from mirror_core.model.names import Offset, Partition
from mirror_core.state.link import MirrorLink
from mirror_core.sync.fence import format_missing_denials

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
