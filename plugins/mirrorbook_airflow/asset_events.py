"""Asset events of a mirror, for DAGs that are scheduled by them.

Airflow keeps a task's events when the task has ended well, and forgets them otherwise: an event is never early, and a
step that failed has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset, AssetAlias

from mirror_core.model.logs import get_logger
from mirror_core.model.names import MirrorName, get_base_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

_log = get_logger(__name__)
_ALIAS_PREFIX: Final = "mirrorbook-"
# Which mirror's asset it is, is known when the task runs. A DAG for all mirrors is scheduled by the alias.
ACTIVE_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}active")
FENCED_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}fenced")
HOME_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}home")
UNHEALTHY_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}unhealthy")
SYNCED_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}synced")
PROVED_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}proved")
READY_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}ready")
DRILLED_ALIAS: Final = AssetAlias(f"{_ALIAS_PREFIX}drilled")


def emit_switched(link: MirrorLink, state: State, run: str, context: Context) -> None:
    """A failover has moved applications: when its source was fenced, if it was, and who is active now.

    Both at once, behind everything during which nobody can write: a task of its own for the first one would be seconds.
    """
    mirror = link.mirror
    if (fenced_ms := _find_step_end_ms(state, run, "fence")) is not None:
        details = {"cluster": mirror.source, "run": run, "at_ms": fenced_ms}
        emit_event(get_base_name(mirror.name), FENCED_ALIAS, context, details)
    details = {"active": mirror.destination, "run": run, "at_ms": _find_step_end_ms(state, run, "switch")}
    emit_event(get_base_name(mirror.name), ACTIVE_ALIAS, context, details)


def emit_home(link: MirrorLink, state: State, run: str, context: Context) -> None:
    """A failback has ended: applications are at home, and protected again."""
    details = {"active": link.mirror.source, "run": run, "at_ms": _find_step_end_ms(state, run, "reprotect")}
    emit_event(link.mirror.name, HOME_ALIAS, context, details)


def emit_event(mirror: MirrorName, alias: AssetAlias, context: Context, details: Mapping[str, object]) -> None:
    """An event of the mirror's asset that is named as the alias."""
    uri = f"mirrorbook://{mirror}/{alias.name.removeprefix(_ALIAS_PREFIX)}"
    extra: dict[str, Any] = {"mirror": mirror, **details}
    context["outlet_events"][alias].add(Asset(uri=uri, name=uri), extra=extra)
    _log.info("asset event: %s", uri)


def _find_step_end_ms(state: State, run: str, step: str) -> int | None:
    """When the journal says that the step was done."""
    record = state.steps.get((run, step))
    return None if record is None else record.ended_ms
