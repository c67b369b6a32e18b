"""Parameters that several DAGs share, and what a deployment allows: section `[mirrorbook]` of Airflow's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.configuration import conf
from airflow.sdk import Param

if TYPE_CHECKING:
    from airflow.sdk.execution_time.hitl import HITLUser

_SECTION: Final = "mirrorbook"


def mirror(description: str) -> Param:
    """The name of an existing mirror."""
    return Param(type="string", minLength=1, description_md=description)


def strategies() -> Param:
    """What a failback may do with topics that have a divergent tail."""
    return Param(
        "",
        type="string",
        description_md="What may be done with topics that have a divergent tail: `STRATEGY` for all, `TOPIC=STRATEGY` "
        "for one, with spaces between: none, recreate, offline, replica. Empty: recreate, where there is a tail",
    )


def spark_master() -> Param:
    """Where Spark runs. Who triggers a run chooses: executors get the data principals' secrets, wherever they are."""
    masters = conf.get(_SECTION, "spark_masters", fallback="").split() or ["local[*]"]
    return Param(masters[0], type="string", enum=masters, description_md="Spark master")


def approvers() -> list[HITLUser] | None:
    """The only users whose approval counts, by their ids in the auth manager; None: whoever may answer in Airflow."""
    return [{"id": user, "name": user} for user in conf.get(_SECTION, "approvers", fallback="").split()] or None


def data_plane() -> dict[str, Param]:
    """How a data plane is run."""
    return {
        "runner": Param("spark", type="string", enum=["spark", "local"], description_md="Where copying tasks run"),
        "master": spark_master(),
        "metrics": Param(
            "",
            type="string",
            pattern=r"^$|^(.+:)?[0-9]{1,5}$",
            description_md="`[HOST:]PORT` where the data plane serves its metrics; empty: nowhere",
        ),
        "patience_s": Param(
            90, type="integer", minimum=10, maximum=900, description_md="Seconds that a start may take"
        ),
    }
