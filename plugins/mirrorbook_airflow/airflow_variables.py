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
NAMES_VARIABLE: Final = "mirrorbook_names"

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Names:
    """What the forms of DAGs offer."""

    mirrors: dict[str, list[str]] = field(default_factory=dict)
    """By destination, so that those of a silent one stay."""
    sets: list[str] = field(default_factory=list)

    def updated(self, answers: Mapping[str, Iterable[str] | None], sets: Iterable[str]) -> Names:
        """After a look at all clusters. None: that one did not answer, and keeps its mirrors. Pure."""
        mirrors = {one: self.mirrors.get(one, []) if names is None else names for one, names in answers.items()}
        return Names({one: sorted(names) for one, names in sorted(mirrors.items())}, sorted(sets))

    def having(self, mirror: str, cluster: str) -> Names:
        """With a mirror that was just made, and its destination. Pure."""
        return self.updated({**self.mirrors, cluster: {*self.mirrors.get(cluster, ()), mirror}}, self.sets)


def listed_clusters() -> tuple[str, ...]:
    """As the Variable lists them, empty when it does not exist."""
    listed = Variable.get(CLUSTERS_VARIABLE, default="")
    return tuple(sorted({name.strip() for name in listed.split(",") if name.strip()}))


def remember_clusters(names: Iterable[str]) -> None:
    """Add these to the known ones."""
    known, wanted = set(listed_clusters()), set(names)
    if not wanted <= known:
        Variable.set(CLUSTERS_VARIABLE, ",".join(sorted(known | wanted)), description="Mirrorbook's clusters")


def note_names(answers: Mapping[str, Iterable[str] | None], sets: Iterable[str]) -> None:
    """Keep the Variable up to date, by the mirrors that each cluster has just told of; None: it did not answer."""
    _note(lambda known: known.updated(answers, sets))


def remember_mirror(mirror: str, cluster: str) -> None:
    """Offer a mirror that was just made, and its destination."""
    _note(lambda known: known.having(mirror, cluster))


def _note(change: Callable[[Names], Names]) -> None:
    """Written only when something has changed. No task fails for it: each has something more important to do."""
    try:
        known = _names()
        if (found := change(known)) != known:
            text = msgspec.json.encode(found).decode()
            Variable.set(NAMES_VARIABLE, text, description="Names that Mirrorbook's forms offer; kept by its DAGs")
    except Exception as error:  # noqa: BLE001 - Airflow's database and secrets backends have errors of their own
        _log.warning("names for forms are not noted: %s", type(error).__name__)


def offered_mirrors() -> list[str]:
    """Names for a form."""
    found = _at_parse(_names)
    return sorted({name for names in found.mirrors.values() for name in names}) if found else []


def offered_sets() -> list[str]:
    """Names for a form."""
    found = _at_parse(_names)
    return found.sets if found else []


def offered_clusters() -> list[str]:
    """Names for a form."""
    return [*(_at_parse(listed_clusters) or ())]


def _at_parse(read: Callable[[], T]) -> T | None:
    """What a DAG file reads while it is parsed. No trouble breaks the parse. A task, which parses the file again, needs
    no form, and does not ask."""
    if get_parsing_context().dag_id is not None:
        return None
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - as above
        _log.warning("forms offer no names: a Variable cannot be read: %s", type(error).__name__)
        return None


def _names() -> Names:
    text = Variable.get(NAMES_VARIABLE, default="")
    try:
        return msgspec.json.decode(text, type=Names) if text else Names()
    except msgspec.MsgspecError as error:  # a person may edit it; the next look writes it anew
        _log.warning("Variable %s is not as Mirrorbook writes it: %s", NAMES_VARIABLE, error)
        return Names()
