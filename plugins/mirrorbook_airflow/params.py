"""Parameters that several DAGs share, and what a deployment allows: section `[mirrorbook]` of Airflow's settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from airflow.configuration import conf
from airflow.sdk import Param

from mirror_core.model.config_sections import format_source_set
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import ClusterName
from mirror_core.model.run import FailbackStrategy
from mirrorbook_airflow.airflow_variables import list_form_clusters, list_form_mirrors, list_form_sets

if TYPE_CHECKING:
    from airflow.sdk.execution_time.hitl import HITLUser

_SECTION: Final = "mirrorbook"
_MAX_DEADLINE_S: Final = 30 * 86_400.0
NO_SPARK: Final = "none"
"""In place of a Spark master: comparisons and salvages run in the task's own process."""
_UNLISTED_MIRROR_HINT: Final = "Type a mirror that is not in the list yet into *Advanced Options*, *Configuration JSON*"


def mirror_param(description: str) -> Param:
    """The name of an existing mirror."""
    return Param(type="string", minLength=1, description_md=description, **_make_examples(list_form_mirrors()))


def mirror_list_param(description: str) -> Param:
    """Names of existing mirrors. Airflow's form gives null for a list from which everything was removed."""
    names = list_form_mirrors()
    return Param(
        [],
        type=["array", "null"],
        items={"type": "string"},
        description_md=f"{description}. {_UNLISTED_MIRROR_HINT}" if names else description,
        **_make_examples(names),
    )


def set_param(description: str) -> Param:
    """The name of a set of mirrors."""
    names = [*list_form_sets(), *(format_source_set(ClusterName(cluster)) for cluster in list_form_clusters())]
    return Param(type="string", minLength=1, description_md=description, **_make_examples(names))


def cluster_param(description: str) -> Param:
    """The id of a cluster's connection."""
    return Param(type="string", minLength=1, description_md=description, **_make_examples(list_form_clusters()))


def _make_examples(names: Sequence[str]) -> dict[str, Any]:
    """Names that a form offers; it takes others, too. Without any the field is one to be typed into."""
    return {"examples": [*names]} if names else {}


def bytes_per_s_param(description: str) -> Param:
    """A limit of what is read; the form's 0 is none."""
    return Param(0, type="integer", minimum=0, description_md=f"{description}; 0: no limit")


def pause_param() -> Param:
    """Whether a planned failover asks at the moment before it stops applications."""
    return Param(
        True,
        type="boolean",
        description_md="Ask again when all is proved, just before applications are stopped; else go on by itself",
    )


def gate_limit_param() -> Param:
    """How long the comparison behind the fence may take."""
    return Param(
        None,
        type=["number", "null"],
        minimum=0,
        description_md="Stop nobody where the comparison behind the fence would take more seconds than this. Empty: "
        "however many",
    )


def leave_behind_param() -> Param:
    """Whether a failover goes on without what cannot be copied in full."""
    return Param(
        False,
        type="boolean",
        description_md="Leave partitions behind that have no leader on the source or, without the source, of which the "
        "destination never had a complete copy: they are promoted with what the destination has, and the rest stays on "
        "the source only. The plan names them",
    )


def strategies_param() -> Param:
    """What a failback may do with topics that have a divergent tail."""
    return Param(
        None,
        type=["string", "null"],  # an empty text would be a field that must be filled in
        description_md="What may be done with topics that have a divergent tail: `STRATEGY` for all, `TOPIC=STRATEGY` "
        f"for one, with spaces between: {', '.join(FailbackStrategy)}. Empty: what copies least over "
        "the link and needs nobody at a broker",
        **_make_examples([*FailbackStrategy]),
    )


def set_strategy_param() -> Param:
    """What a failback of a set may do with topics that have a divergent tail."""
    return Param(
        None,
        type=["string", "null"],
        enum=[None, *FailbackStrategy],
        description_md="What may be done with topics that have a divergent tail. Empty: what copies least over the "
        "link and needs nobody at a broker",
    )


def spark_master_param() -> Param:
    """Where Spark runs. Who triggers a run chooses: executors get the data principals' secrets, wherever they are."""
    masters = read_spark_masters()
    what = f"Spark master; `{NO_SPARK}`: without Spark, in the task's own process"
    return Param(masters[0], type="string", enum=masters, description_md=what)


def read_spark_masters() -> list[str]:
    """What a run may be given, the usual one first."""
    usual = "local[*]" if read_executors_config() else NO_SPARK
    return conf.get(_SECTION, "spark_masters", fallback="").split() or [usual]


def read_salvage_location() -> str:
    """Folder of an object store where salvaged records are written to, too; empty: nowhere else."""
    return conf.get(_SECTION, "salvage", fallback="")


def read_executors_config() -> str:
    """The mirrorbook.yaml that Spark's tasks open; empty: they have none."""
    return conf.get(_SECTION, "executors_config", fallback="")


def read_spark_conf() -> dict[str, str]:
    """Spark's settings, `KEY=VALUE` on lines of their own. A deployment's, never a run's: they can name code that runs
    on the worker, beside the control principals' secrets."""
    settings = dict[str, str]()
    for line in conf.get(_SECTION, "spark_conf", fallback="").splitlines():
        key, equals, value = line.strip().partition("=")
        if key and not equals:
            raise BadRequest(f"Airflow's setting [{_SECTION}] spark_conf: {key!r} is not KEY=VALUE")
        if key:
            settings[key.strip()] = value
    return settings


def read_receipts_location() -> str:
    """Folder or URL where data planes keep their receipts; empty: not known here."""
    return conf.get(_SECTION, "receipts", fallback="")


def read_approvers(own: Sequence[str] = ()) -> list[HITLUser] | None:
    """The only users whose approval counts, by their ids in the auth manager; None: whoever may answer in Airflow.

    `own`: the only ones of a DAG. Raises BadRequest where the deployment names others, or two people are needed.
    """
    allowed = conf.get(_SECTION, "approvers", fallback="").split()
    if isinstance(own, str) or (own and allowed and (others := set(own) - set(allowed))):
        raise BadRequest(
            "approvers is a text: it must be a list of ids"
            if isinstance(own, str)
            else f"approvers {', '.join(sorted(others))} are not in Airflow's setting [{_SECTION}] approvers"
        )
    if own and must_ask_two_people() and len(set(own)) < 2:
        raise BadRequest(f"approvers names one user, and Airflow's setting [{_SECTION}] two_people asks two people")
    return [{"id": user, "name": user} for user in own or allowed] or None


def explain_wrong_approvers(own: Sequence[str] = ()) -> list[str]:
    """Why nobody could approve anything as the deployment is set up: ids that its auth manager gives to nobody."""
    ids = [user["id"] for user in read_approvers(own) or ()]
    manager = conf.get("core", "auth_manager", fallback="").rpartition(".")[2]
    if manager == "SimpleAuthManager" and not conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False):
        users = conf.get("core", "simple_auth_manager_users", fallback="").split(",")
        known = {user.strip().partition(":")[0] for user in users}
        wrong, what = (
            [user_id for user_id in ids if user_id not in known],
            "is no user in [core] simple_auth_manager_users",
        )
    else:
        form, what = _USER_IDS.get(manager, _ANY_ID)
        wrong = [user_id for user_id in ids if not form.fullmatch(user_id)]
    reasons = [f"APPROVERS names {user_id!r}, which {what}" for user_id in wrong]
    if must_ask_two_people() and ids and len(set(ids)) < 2:
        reasons.append("TWO_PEOPLE is set, and APPROVERS names one user: nobody else can approve")
    return reasons


_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ANY_ID: Final = (re.compile(r".+"), "is empty")
_USER_IDS: Final = MappingProxyType(
    {
        "FabAuthManager": (re.compile(r"[0-9]+"), "is no id of the FAB auth manager: those are numbers"),
        "KeycloakAuthManager": (_UUID, "is no id of Keycloak: those are UUIDs"),
    }
)
"""What users' ids look like, by auth manager. Its users are in the API server's database only."""


def must_ask_two_people() -> bool:
    """Whether a failover, a failback or a grave action has to be approved by a second person, too."""
    return conf.getboolean(_SECTION, "two_people", fallback=False)


def read_prometheus_address() -> str:
    """Address of the Prometheus that the DR page asks for the past; empty: of none."""
    return conf.get(_SECTION, "prometheus", fallback="").strip()


def read_notifier_names() -> list[str]:
    """Notifiers as `module:object`: called with the context of a run that is red, or of a task that asks."""
    return conf.get(_SECTION, "notify", fallback="").split()


def read_deadline_s() -> float:
    """A failover that has not ended so long after it was asked for is told of; 0: none is."""
    given = conf.get(_SECTION, "deadline_s", fallback="") or "0"
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= _MAX_DEADLINE_S:
        raise BadRequest(f"Airflow's setting [{_SECTION}] deadline_s is {given!r}: it must be seconds, 30 days at most")
    return seconds


def patience_param() -> Param:
    """How long a data plane that is watched may take to begin."""
    return Param(
        90, type="integer", minimum=10, maximum=900, description_md="Seconds that the start of a data plane may take"
    )
