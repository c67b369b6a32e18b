"""Parameters that several DAGs share."""

from __future__ import annotations

from airflow.sdk import Param


def mirror(description: str) -> Param:
    """The name of an existing mirror."""
    return Param(type="string", minLength=1, description_md=description)


def failover_mode() -> Param:
    """Whether the source lives."""
    return Param(
        "planned",
        type="string",
        enum=["planned", "unplanned"],
        description_md="planned: the source lives, nothing is lost. unplanned: it is dead, and given up",
    )


def spark_master() -> Param:
    """Where Spark runs."""
    return Param("local[*]", type="string", description_md="Spark master")


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
