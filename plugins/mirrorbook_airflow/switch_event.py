"""Asset events of a mirror, for DAGs that are scheduled by them: where its hooks ask for `airflow: asset`.

Airflow keeps a task's events when the task has ended well, and forgets them otherwise: an event is never early, and a
step that failed has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset, AssetAlias

from mirror_core.model.hooks import AssetEvent, format_asset_uri
from mirror_core.model.names import MirrorName, get_base_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from mirror_core.model.hooks import Hook
    from mirror_core.state.mirror_link import MirrorLink
    from mirror_core.state.state_records import State

# Which mirror's asset it is, is known when the task runs. A DAG for all mirrors is scheduled by the alias.
SWITCHED_ALIAS: Final = AssetAlias("mirrorbook-switched")
FENCED_ALIAS: Final = AssetAlias("mirrorbook-fenced")
HOME_ALIAS: Final = AssetAlias("mirrorbook-home")
UNHEALTHY_ALIAS: Final = AssetAlias("mirrorbook-unhealthy")
_ASSET_STATES: Final = {
    SWITCHED_ALIAS.name: "active",
    FENCED_ALIAS.name: "fenced",
    HOME_ALIAS.name: "home",
    UNHEALTHY_ALIAS.name: "unhealthy",
}


def emit_switched(link: MirrorLink, state: State, run: str, context: Context) -> Iterator[str]:
    """A failover has moved applications: when its source was fenced, if it was, and who is active now. Their URIs.

    Both at once, behind everything during which nobody can write: a task of its own for the first one would be seconds.
    """
    mirror, hooks = link.mirror, link.config.hooks(link.mirror.name)
    if (fenced_ms := _find_step_end_ms(state, run, "fence")) is not None:
        details = {"cluster": mirror.source, "run": run, "at_ms": fenced_ms}
        yield from emit_event(hooks, mirror.name, FENCED_ALIAS, context, details)
    details = {"active": mirror.destination, "run": run, "at_ms": _find_step_end_ms(state, run, "switch")}
    yield from emit_event(hooks, mirror.name, SWITCHED_ALIAS, context, details)


def emit_home(link: MirrorLink, state: State, run: str, context: Context) -> Iterator[str]:
    """A failback has ended: applications are at home, and protected again. The URI."""
    details = {"active": link.mirror.source, "run": run, "at_ms": _find_step_end_ms(state, run, "reprotect")}
    yield from emit_event(link.config.hooks(link.mirror.name), link.mirror.name, HOME_ALIAS, context, details)


def emit_event(
    hooks: Iterable[Hook], mirror: MirrorName, alias: AssetAlias, context: Context, details: Mapping[str, object]
) -> Iterator[str]:
    """An event of the mirror's asset of this kind, if its hooks ask for any; its URI. A way home is its mirror's."""
    if any(isinstance(hook.call, AssetEvent) for hook in hooks):
        base = get_base_name(mirror)
        uri = format_asset_uri(base, _ASSET_STATES[alias.name])
        extra: dict[str, Any] = {"mirror": base, **details}
        context["outlet_events"][alias].add(Asset(uri=uri, name=uri), extra=extra)
        yield uri


def _find_step_end_ms(state: State, run: str, step: str) -> int | None:
    """When the journal says that the step was done."""
    record = state.steps.get((run, step))
    return None if record is None else record.ended_ms
