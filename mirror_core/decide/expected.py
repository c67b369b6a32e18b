"""A user's expectations of mirrors: limits for tiers of topics, and own Great Expectations
expectations.

Read from `expectations` in mirrorbook.yaml, or from the file named there. They are only added to Mirrorbook's own; none
can remove one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.filters import Filter, topics_named
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import HEARTBEATS, MirrorName, base_name


class Judging(StrEnum):
    PARITY = "parity"
    SYNC = "sync"
    READINESS = "readiness"


LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_lag": "lag",
        "max_lag_s": "behind_s",
        "max_missing": "missing",
        "max_standstill_s": "standstill_s",
        "max_proof_age_s": "proof_age_s",
        "max_sync_age_s": "sync_age_s",
        "max_drill_age_s": "drill_age_s",
    }
)
_DRIFT: Final = "drift"
_NONE: Final = "none"
_TIER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]*")
_CONDITION: Final = "row_condition"
_FROM_JSON: Final = frozenset({"id", "meta", "severity", "notes", "description", "rendered_content"})
"""Keys of an expectation exported as JSON that do not change its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    name: str
    topics: Filter = field(repr=False)
    mirrors: frozenset[str] = frozenset()
    limits: Mapping[str, float]
    no_drift: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    at: str
    type: str
    kwargs: Mapping[str, object]
    tier: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The first tier that matches a topic wins."""

    tiers: tuple[Tier, ...] = ()
    own: Mapping[Judging, tuple[Own, ...]] = field(default_factory=dict)

    def of(self, mirror: MirrorName) -> Expected:
        tiers = tuple(t for t in self.tiers if not t.mirrors or base_name(mirror) in t.mirrors)
        names = {tier.name for tier in tiers}
        mine = {j: tuple(o for o in own if o.tier is None or o.tier in names) for j, own in self.own.items()}
        return replace(self, tiers=tiers, own=mine)

    def tier_of(self, topic: str) -> str:
        if topic.startswith(HEARTBEATS):
            return ""
        return next((tier.name for tier in self.tiers if topic in tier.topics), "")


NOTHING: Final = Expected()


def expected_of(where: str, raw: object) -> Expected:
    """Parses the section. BadRequest says where, what is wrong and what to write.

    Great Expectations itself is not needed. `where`: file, and section.
    """
    if not isinstance(raw, dict):
        raise BadRequest(f"{where}: must be a mapping; in mirrorbook.yaml also the path of a file that holds one")
    fields = _mapping(where, raw, {"tiers", *Judging})
    tiers = tuple(_tier(f"{where}: tiers[{n}]", one) for n, one in enumerate(_list(f"{where}: tiers", fields, "tiers")))
    names = [tier.name for tier in tiers]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadRequest(f"{where}: tiers: more than one is named {min(twice)!r}: rename one of them")
    own = {
        judging: tuple(
            _own(f"{where}: {judging}[{n}]", one, names)
            for n, one in enumerate(_list(f"{where}: {judging}", fields, judging))
        )
        for judging in Judging
    }
    return Expected(tiers=tiers, own=own)


def _tier(where: str, raw: object) -> Tier:
    fields = _mapping(where, raw, {"name", "topics", "mirrors", _DRIFT, *LIMITS})
    name = fields.get("name")
    if not isinstance(name, str) or not _TIER_NAME.fullmatch(name):
        raise BadRequest(f"{where}.name: must be text of letters, digits, spaces, dots, dashes and underscores")
    where = f"{where} ({name})"
    if fields.get(_DRIFT, _NONE) != _NONE:
        raise BadRequest(f"{where}.{_DRIFT}: can be `{_NONE}` only; leave it out where a sync may find something to do")
    expressions = _names(f"{where}.topics", fields.get("topics"))
    try:
        topics = topics_named(expressions)
    except BadRequest as error:
        raise BadRequest(f"{where}.topics: {str(error).removeprefix('--topics ')}") from None
    return Tier(
        name=name,
        topics=topics,
        mirrors=frozenset(_names(f"{where}.mirrors", fields["mirrors"])) if "mirrors" in fields else frozenset(),
        limits={word: _limit(f"{where}.{word}", fields[word]) for word in LIMITS if word in fields},
        no_drift=_DRIFT in fields,
    )


def _own(where: str, raw: object, tiers: list[str]) -> Own:
    fields = _mapping(where, raw, {"type", "kwargs", "tier", *_FROM_JSON})
    kind = fields.get("type")
    if not isinstance(kind, str) or not kind:
        raise BadRequest(f"{where}.type: must name an expectation, such as expect_column_values_to_be_between")
    kwargs = _mapping(f"{where}.kwargs", fields.get("kwargs", {}))
    tier = fields.get("tier")
    if tier is not None and tier not in tiers:
        raise BadRequest(f"{where}.tier: there is no tier {tier!r}; there are {', '.join(tiers) or 'none'}")
    if tier is not None and _CONDITION in kwargs:
        raise BadRequest(f"{where}: has both `tier` and {_CONDITION}: write the tier into the condition: tier == ...")
    return Own(at=where, type=kind, kwargs=kwargs, tier=None if tier is None else str(tier))


def _list(where: str, fields: Mapping[str, object], key: str) -> list[object]:
    raw = fields.get(key, [])
    if not isinstance(raw, list):
        raise BadRequest(f"{where}: must be a list")
    return raw


def _names(where: str, raw: object) -> list[str]:
    if not isinstance(raw, list) or not raw or not all(isinstance(one, str) and one for one in raw):
        raise BadRequest(f"{where}: must be a list of names or regular expressions, with at least one")
    return raw


def _limit(where: str, raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 <= raw < float("inf"):
        raise BadRequest(f"{where}: must be a number, 0 or more")
    return float(raw)


def _mapping(where: str, raw: object, known: set[str] | None = None) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{where}: must be a mapping")
    fields = {str(key): value for key, value in raw.items()}
    unknown = set() if known is None else fields.keys() - known
    if unknown:
        raise BadRequest(f"{where}: unknown {min(unknown)!r}; known are {', '.join(sorted(known or ()))}")
    return fields
