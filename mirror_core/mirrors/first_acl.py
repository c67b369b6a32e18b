from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mirror_core.decide.view import some
from mirror_core.kafka.acls import Acls, AuthorizerOff
from mirror_core.kafka.admission import Admission, Named, admissions
from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.config import Principal
from mirror_core.model.acl import Acl, Resource
from mirror_core.model.errors import MirrorError, RemoteFault
from mirror_core.model.names import DRILL, MirrorName
from mirror_core.rights.first_acl import (
    AUTHORIZER,
    KAFKAS_OWN,
    REFUSED,
    SETTING,
    SUPER_USERS,
    FirstAcl,
    Heard,
    Setting,
    ShutsOut,
    Trial,
    Unheard,
    bare_topics,
    first_acl,
    trials,
    without_acl,
)
from mirror_core.rights.needed import CLUSTER_NAME
from mirror_core.sync.principals import principal_name

_SHOWN = {"true": Setting.TRUE, "false": Setting.FALSE, None: Setting.HIDDEN}


def look(control: ClusterClient, data: ClusterClient, acls: Acls | AuthorizerOff | str) -> FirstAcl:
    """Would a first ACL shut others out? `acls`: entries, or why they are unknown."""
    if isinstance(acls, AuthorizerOff):
        return FirstAcl(ShutsOut.NO, f"the cluster {acls.words}")
    if isinstance(acls, str):
        return FirstAcl(ShutsOut.UNKNOWN, f"the ACLs are {acls}", "grant the control principal DESCRIBE on the cluster")
    if not without_acl(acls.entries):
        return first_acl(acls.entries, ())
    user = principal_name(control.config, Principal.CONTROL)
    wanted = trials(acls.entries, user)
    by_data = _by_data(data, acls.entries)
    on_cluster = any(acl.resource is Resource.CLUSTER for acl in acls.entries)
    said = list[Heard | Unheard]()
    for broker, answer in sorted(admissions(control, (SETTING, SUPER_USERS, AUTHORIZER), _named(wanted)).items()):
        if isinstance(answer, RemoteFault):
            said.append(Unheard(broker, str(answer)))
            continue
        known = {**_outcomes(wanted, answer), **by_data.get(broker, {})}
        if answer.settings is None:
            known[Trial(user, Resource.CLUSTER, CLUSTER_NAME, others=on_cluster)] = False
        said.append(_heard(broker, answer.settings, known))
    return first_acl(acls.entries, said)


def refused_of(mirror: MirrorName) -> tuple[ShutsOut, ...]:
    """A drill's topic has no other users, and its mirror exists."""
    return (ShutsOut.YES,) if mirror.startswith(DRILL) else REFUSED


def fence_shuts_out(
    control: ClusterClient, acls: Acls | AuthorizerOff, topics: Iterable[str], mirror: MirrorName
) -> str:
    """For plans whose fence would be the first ACL on a topic."""
    if isinstance(acls, AuthorizerOff) or not (bare := bare_topics(topics, acls.entries)):
        return ""
    with ClusterClient(control.config, Principal.DATA, timeout_s=control.timeout_s) as data:
        found = look(control, data, acls)
    return f"{some(bare)} have no ACL, and {found.words}" if found.answer in refused_of(mirror) else ""


def _by_data(data: ClusterClient, entries: frozenset[Acl]) -> Mapping[int, Mapping[Trial, bool]]:
    alike = data.config.properties(Principal.DATA) == data.config.properties(Principal.CONTROL)
    if alike or not data.config.knows_data:  # never one user with the other's password
        return {}
    wanted = trials(entries, principal_name(data.config, Principal.DATA))
    try:
        found = admissions(data, (), _named(wanted))
    except MirrorError:
        return {}
    return {b: _outcomes(wanted, said) for b, said in found.items() if not isinstance(said, RemoteFault)}


def _outcomes(wanted: Collection[Trial], said: Admission) -> dict[Trial, bool]:
    """Without undecided ones."""
    return {t: said.named[t.resource, t.name] for t in wanted if (t.resource, t.name) in said.named}


def _named(wanted: Collection[Trial]) -> frozenset[Named]:
    return frozenset((trial.resource, trial.name) for trial in wanted)


def _heard(broker: int, settings: Mapping[str, str | None] | None, known: Mapping[Trial, bool]) -> Heard:
    if settings is None:
        setting = Setting.DENIED
    elif SETTING in settings:
        setting = _SHOWN.get(settings[SETTING], Setting.HIDDEN)
    else:
        setting = Setting.NOT_SET
    kafkas_own = settings is not None and settings.get(AUTHORIZER) in KAFKAS_OWN
    return Heard(
        broker=broker,
        setting=setting,
        kafkas_own=kafkas_own,
        super_users=settings is None or not kafkas_own or SUPER_USERS in settings,
        allowed=frozenset(trial for trial, may in known.items() if may),
        refused=frozenset(trial for trial, may in known.items() if not may),
    )
