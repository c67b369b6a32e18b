"""Broker settings and a first ACL that would harm a mirror."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.decide.mirror_snapshot import join_limited
from mirror_core.kafka.acl_requests import AuthorizerOff, BrokerAcls
from mirror_core.kafka.authorization_probe import (
    BrokerAuthorization,
    NamedResource,
    fetch_broker_setting,
    probe_brokers,
)
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.errors import MirrorError, MissingPermission, RemoteFault
from mirror_core.model.findings import Finding
from mirror_core.model.names import DRILL_PREFIX, MirrorName
from mirror_core.rights.first_acl import (
    ALLOW_EVERYONE_SETTING,
    AUTHORIZER_SETTING,
    KAFKA_AUTHORIZER_CLASSES,
    REFUSED_EFFECTS,
    SUPER_USERS_SETTING,
    AllowEveryoneValue,
    AuthorizerReply,
    DescribeTrial,
    FirstAclAssessment,
    FirstAclEffect,
    UnansweredBroker,
    assess_first_acl,
    build_describe_trials,
    find_topics_without_acl,
    find_types_without_acl,
)
from mirror_core.rights.required_acls import CLUSTER_NAME
from mirror_core.sync.principals import format_principal

UNCLEAN_ELECTION_KEY: Final = "unclean.leader.election.enable"
AUTO_CREATE_KEY: Final = "auto.create.topics.enable"


def check_unclean_election(client: ClusterClient, brokers: Sequence[int]) -> tuple[str, ...]:
    """A topic may override it."""
    return _advise_if_true(
        client,
        brokers,
        UNCLEAN_ELECTION_KEY,
        "as a source, set it to false: a leader that lacks records which were copied makes its partition FAILED "
        "(diverged), and a person has to decide which side is right",
    )


def check_auto_creation(client: ClusterClient, brokers: Sequence[int]) -> tuple[str, ...]:
    return _advise_if_true(
        client,
        brokers,
        AUTO_CREATE_KEY,
        "as a destination, set it to false: an application that comes too early creates a topic under the name of one "
        "that is to be mirrored, which is not copied into once it holds a record",
    )


def _advise_if_true(client: ClusterClient, brokers: Sequence[int], setting: str, meaning: str) -> tuple[str, ...]:
    enabled_on = list[int]()
    for broker in brokers:
        try:
            value = fetch_broker_setting(client, broker, setting)
        except RemoteFault:
            break
        if value is not None and value[0] == "true":
            enabled_on.append(broker)
    return (
        (f"{setting} is true on broker {join_limited(enabled_on)} of {client.name}: {meaning}",) if enabled_on else ()
    )


PRODUCER_EXPIRY_KEY: Final = "producer.id.expiration.ms"
MAX_EXPIRY_MS: Final = "2147483647"


@dataclass(frozen=True, slots=True)
class ProducerExpiryCheck:
    expiring: tuple[Finding, ...]
    """Idempotence depends on unexpired producer ids."""
    unknown: tuple[str, ...]


def check_producer_expiry(client: ClusterClient, brokers: Sequence[int]) -> ProducerExpiryCheck:
    expiring, unknown = list[Finding](), list[str]()
    for broker in brokers:
        try:
            setting = fetch_broker_setting(client, broker, PRODUCER_EXPIRY_KEY)
        except MissingPermission as error:
            unknown.append(f"{PRODUCER_EXPIRY_KEY} could not be looked at: {error}")
            break  # other brokers would refuse, too
        except RemoteFault as error:
            unknown.append(f"{PRODUCER_EXPIRY_KEY} of broker {broker} could not be looked at: {error}")
            continue
        if setting is not None and setting != (MAX_EXPIRY_MS, True):
            expiring.append(Finding("producer_ids_expire", broker, expiry_ms=setting[0], needed_ms=MAX_EXPIRY_MS))
    return ProducerExpiryCheck(tuple(expiring), tuple(unknown))


_SETTING_BY_VALUE = {
    "true": AllowEveryoneValue.TRUE,
    "false": AllowEveryoneValue.FALSE,
    None: AllowEveryoneValue.HIDDEN,
}


def check_first_acl(
    control: ClusterClient, data: ClusterClient, acls: BrokerAcls | AuthorizerOff | str
) -> FirstAclAssessment:
    """Would a first ACL shut others out? `acls`: entries, or why they are unknown."""
    if isinstance(acls, AuthorizerOff):
        return FirstAclAssessment(FirstAclEffect.NO, f"the cluster {acls.text}")
    if isinstance(acls, str):
        return FirstAclAssessment(
            FirstAclEffect.UNKNOWN, f"the ACLs are {acls}", "grant the control principal DESCRIBE on the cluster"
        )
    if not find_types_without_acl(acls.entries):
        return assess_first_acl(acls.entries, ())
    user = format_principal(control.config, Principal.CONTROL)
    probes = build_describe_trials(acls.entries, user)
    data_outcomes = _probe_as_data(data, acls.entries)
    on_cluster = any(acl.resource is Resource.CLUSTER for acl in acls.entries)
    answers = list[AuthorizerReply | UnansweredBroker]()
    for broker, answer in sorted(
        probe_brokers(
            control, (ALLOW_EVERYONE_SETTING, SUPER_USERS_SETTING, AUTHORIZER_SETTING), _list_named(probes)
        ).items()
    ):
        if isinstance(answer, RemoteFault):
            answers.append(UnansweredBroker(broker, str(answer)))
            continue
        outcomes = {**_list_outcomes(probes, answer), **data_outcomes.get(broker, {})}
        if answer.settings is None:
            outcomes[DescribeTrial(user, Resource.CLUSTER, CLUSTER_NAME, has_foreign_acl=on_cluster)] = False
        answers.append(_to_broker_answer(broker, answer.settings, outcomes))
    return assess_first_acl(acls.entries, answers)


def list_refused_answers(mirror: MirrorName) -> tuple[FirstAclEffect, ...]:
    """A drill's topic has no other users, and its mirror exists."""
    return (FirstAclEffect.YES,) if mirror.startswith(DRILL_PREFIX) else REFUSED_EFFECTS


def explain_fence_shut_out(
    control: ClusterClient, acls: BrokerAcls | AuthorizerOff, topics: Iterable[str], mirror: MirrorName
) -> Finding | None:
    """For a fence that would be the first ACL on a topic."""
    if isinstance(acls, AuthorizerOff) or not (topics_without_acl := find_topics_without_acl(topics, acls.entries)):
        return None
    with ClusterClient(control.config, Principal.DATA, timeout_s=control.timeout_s) as data:
        result = check_first_acl(control, data, acls)
    if result.shuts_out not in list_refused_answers(mirror):
        return None
    return Finding(
        "fence_too_wide", control.name, topics=topics_without_acl, shuts_out=result.shuts_out, reason=result.text
    )


def _probe_as_data(data: ClusterClient, entries: frozenset[Acl]) -> Mapping[int, Mapping[DescribeTrial, bool]]:
    is_shared = data.config.properties(Principal.DATA) == data.config.properties(Principal.CONTROL)
    if is_shared or not data.config.has_data_login:  # never one user with the other's password
        return {}
    probes = build_describe_trials(entries, format_principal(data.config, Principal.DATA))
    try:
        answers = probe_brokers(data, (), _list_named(probes))
    except MirrorError:
        return {}
    return {b: _list_outcomes(probes, answer) for b, answer in answers.items() if not isinstance(answer, RemoteFault)}


def _list_outcomes(probes: Collection[DescribeTrial], answer: BrokerAuthorization) -> dict[DescribeTrial, bool]:
    return {t: answer.can_describe[t.resource, t.name] for t in probes if (t.resource, t.name) in answer.can_describe}


def _list_named(probes: Collection[DescribeTrial]) -> frozenset[NamedResource]:
    return frozenset((trial.resource, trial.name) for trial in probes)


def _to_broker_answer(
    broker: int, settings: Mapping[str, str | None] | None, outcomes: Mapping[DescribeTrial, bool]
) -> AuthorizerReply:
    if settings is None:
        setting = AllowEveryoneValue.DENIED
    elif ALLOW_EVERYONE_SETTING in settings:
        setting = _SETTING_BY_VALUE.get(settings[ALLOW_EVERYONE_SETTING], AllowEveryoneValue.HIDDEN)
    else:
        setting = AllowEveryoneValue.NOT_SET
    kafkas_own = settings is not None and settings.get(AUTHORIZER_SETTING) in KAFKA_AUTHORIZER_CLASSES
    return AuthorizerReply(
        broker=broker,
        setting=setting,
        is_kafka_authorizer=kafkas_own,
        may_have_super_users=settings is None or not kafkas_own or SUPER_USERS_SETTING in settings,
        allowed=frozenset(trial for trial, is_allowed in outcomes.items() if is_allowed),
        refused=frozenset(trial for trial, is_allowed in outcomes.items() if not is_allowed),
    )
