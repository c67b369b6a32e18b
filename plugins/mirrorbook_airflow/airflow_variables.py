"""Airflow's Variables that Mirrorbook keeps: the clusters that it looks after, and the names that forms offer.

A DAG file is parsed again and again, and asks no cluster: tasks that have read the state of all clusters note the
names, and a parse reads the Variable. Names that are not up to date do no harm, since forms take others, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
from airflow.sdk import Variable, get_parsing_context

CLUSTERS_VARIABLE: Final = "mirrorbook_clusters"
"""Connection ids of the clusters that this Airflow looks after, separated by commas."""
FORM_NAMES_VARIABLE: Final = "mirrorbook_names"

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FormNames:
    """What the forms of DAGs offer."""

    mirrors: dict[str, list[str]] = field(default_factory=dict)
    """By destination, so that those of a silent one stay."""
    sets: list[str] = field(default_factory=list)

    def with_cluster_mirrors(
        self, mirrors_by_cluster: Mapping[str, Iterable[str] | None], sets: Iterable[str]
    ) -> FormNames:
        """After a look at all clusters. None: that one did not answer, and keeps its mirrors. Pure."""
        mirrors = {
            cluster: self.mirrors.get(cluster, []) if names is None else names
            for cluster, names in mirrors_by_cluster.items()
        }
        return FormNames({cluster: sorted(names) for cluster, names in sorted(mirrors.items())}, sorted(sets))

    def with_mirror(self, mirror: str, cluster: str) -> FormNames:
        """With a mirror that was just made, and its destination. Pure."""
        return self.with_cluster_mirrors({**self.mirrors, cluster: {*self.mirrors.get(cluster, ()), mirror}}, self.sets)


def list_clusters() -> tuple[str, ...]:
    """As the Variable lists them, empty when it does not exist."""
    listed = Variable.get(CLUSTERS_VARIABLE, default="")
    return tuple(sorted({name.strip() for name in listed.split(",") if name.strip()}))


def add_clusters(names: Iterable[str]) -> None:
    """Add these to the known ones."""
    known, wanted = set(list_clusters()), set(names)
    if not wanted <= known:
        Variable.set(CLUSTERS_VARIABLE, ",".join(sorted(known | wanted)), description="Mirrorbook's clusters")


def update_form_names(mirrors_by_cluster: Mapping[str, Iterable[str] | None], sets: Iterable[str]) -> None:
    """Keep the Variable up to date, by the mirrors that each cluster has just told of; None: it did not answer."""
    _update_names(lambda known: known.with_cluster_mirrors(mirrors_by_cluster, sets))


def add_form_mirror(mirror: str, cluster: str) -> None:
    """Offer a mirror that was just made, and its destination."""
    _update_names(lambda known: known.with_mirror(mirror, cluster))


def _update_names(change: Callable[[FormNames], FormNames]) -> None:
    """Written only when something has changed. No task fails for it: each has something more important to do."""
    try:
        known = _read_names()
        if (changed := change(known)) != known:
            text = msgspec.json.encode(changed).decode()
            Variable.set(FORM_NAMES_VARIABLE, text, description="Names that Mirrorbook's forms offer; kept by its DAGs")
    except Exception as error:  # noqa: BLE001 - Airflow's database and secrets backends have errors of their own
        _log.warning("names for forms are not noted: %s", type(error).__name__)


def list_form_mirrors() -> list[str]:
    """Names for a form."""
    form_names = _read_at_parse(_read_names)
    return sorted({name for names in form_names.mirrors.values() for name in names}) if form_names else []


def list_form_sets() -> list[str]:
    """Names for a form."""
    form_names = _read_at_parse(_read_names)
    return form_names.sets if form_names else []


def list_form_clusters() -> list[str]:
    """Names for a form."""
    return [*(_read_at_parse(list_clusters) or ())]


def _read_at_parse(read: Callable[[], T]) -> T | None:
    """What a DAG file reads while it is parsed. No trouble breaks the parse. A task, which parses the file again, needs
    no form, and does not ask."""
    if get_parsing_context().dag_id is not None:
        return None
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - as above
        _log.warning("forms offer no names: a Variable cannot be read: %s", type(error).__name__)
        return None


def _read_names() -> FormNames:
    text = Variable.get(FORM_NAMES_VARIABLE, default="")
    try:
        return msgspec.json.decode(text, type=FormNames) if text else FormNames()
    except msgspec.MsgspecError as error:  # a person may edit it; the next look writes it anew
        _log.warning("Variable %s is not as Mirrorbook writes it: %s", FORM_NAMES_VARIABLE, error)
        return FormNames()
