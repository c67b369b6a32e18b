"""A user's expectations of mirrors. They remove none of Mirrorbook's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mirror_core.decide.filters import NameFilter, parse_topic_filter
from mirror_core.model.errors import BadRequest
from mirror_core.model.names import HEARTBEAT_TOPIC_PREFIX, MirrorName, get_base_name


class JudgedTable(StrEnum):
    PARITY = "parity"
    SYNC = "sync"
    READINESS = "readiness"


TIER_LIMITS: Final[Mapping[str, str]] = MappingProxyType(
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
_DRIFT_KEY: Final = "drift"
_NO_DRIFT: Final = "none"
_TIER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]*")
_CONDITION_KEY: Final = "row_condition"
_IGNORED_KEYS: Final = frozenset({"id", "meta", "severity", "notes", "description", "rendered_content"})
"""Keys of an expectation exported as JSON that do not change its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTier:
    name: str
    topics: NameFilter = field(repr=False)
    mirrors: frozenset[str] = frozenset()
    limits: Mapping[str, float]
    no_drift: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserExpectation:
    location: str
    type: str
    kwargs: Mapping[str, object]
    tier: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserExpectations:
    """The first tier that matches a topic wins."""

    tiers: tuple[TopicTier, ...] = ()
    expectations: Mapping[JudgedTable, tuple[UserExpectation, ...]] = field(default_factory=dict)

    def for_mirror(self, mirror: MirrorName) -> UserExpectations:
        tiers = tuple(t for t in self.tiers if not t.mirrors or get_base_name(mirror) in t.mirrors)
        names = {tier.name for tier in tiers}
        expectations = {
            j: tuple(o for o in table_expectations if o.tier is None or o.tier in names)
            for j, table_expectations in self.expectations.items()
        }
        return replace(self, tiers=tiers, expectations=expectations)

    def find_tier(self, topic: str) -> str:
        if topic.startswith(HEARTBEAT_TOPIC_PREFIX):
            return ""
        return next((tier.name for tier in self.tiers if topic in tier.topics), "")


NO_EXPECTATIONS: Final = UserExpectations()


def parse_expectations(location: str, raw: object) -> UserExpectations:
    """BadRequest says where, what is wrong and what to write.

    Great Expectations itself is not needed. `location`: file, and section.
    """
    if not isinstance(raw, dict):
        raise BadRequest(f"{location}: must be a mapping; in mirrorbook.yaml also the path of a file that holds one")
    fields = _parse_mapping(location, raw, {"tiers", *JudgedTable})
    tiers = tuple(
        _parse_tier(f"{location}: tiers[{n}]", item)
        for n, item in enumerate(_parse_list(f"{location}: tiers", fields, "tiers"))
    )
    names = [tier.name for tier in tiers]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise BadRequest(f"{location}: tiers: more than one is named {min(duplicates)!r}: rename one of them")
    expectations = {
        judging: tuple(
            _parse_expectation(f"{location}: {judging}[{n}]", item, names)
            for n, item in enumerate(_parse_list(f"{location}: {judging}", fields, judging))
        )
        for judging in JudgedTable
    }
    return UserExpectations(tiers=tiers, expectations=expectations)


def _parse_tier(location: str, raw: object) -> TopicTier:
    fields = _parse_mapping(location, raw, {"name", "topics", "mirrors", _DRIFT_KEY, *TIER_LIMITS})
    name = fields.get("name")
    if not isinstance(name, str) or not _TIER_NAME.fullmatch(name):
        raise BadRequest(f"{location}.name: must be text of letters, digits, spaces, dots, dashes and underscores")
    location = f"{location} ({name})"
    if fields.get(_DRIFT_KEY, _NO_DRIFT) != _NO_DRIFT:
        raise BadRequest(
            f"{location}.{_DRIFT_KEY}: can be `{_NO_DRIFT}` only; leave it out where a sync may find something to do"
        )
    expressions = _parse_names(f"{location}.topics", fields.get("topics"))
    try:
        topics = parse_topic_filter(expressions)
    except BadRequest as error:
        raise BadRequest(f"{location}.topics: {str(error).removeprefix('--topics ')}") from None
    return TopicTier(
        name=name,
        topics=topics,
        mirrors=frozenset(_parse_names(f"{location}.mirrors", fields["mirrors"]))
        if "mirrors" in fields
        else frozenset(),
        limits={word: _parse_limit(f"{location}.{word}", fields[word]) for word in TIER_LIMITS if word in fields},
        no_drift=_DRIFT_KEY in fields,
    )


def _parse_expectation(location: str, raw: object, tiers: list[str]) -> UserExpectation:
    fields = _parse_mapping(location, raw, {"type", "kwargs", "tier", *_IGNORED_KEYS})
    type_name = fields.get("type")
    if not isinstance(type_name, str) or not type_name:
        raise BadRequest(f"{location}.type: must name an expectation, such as expect_column_values_to_be_between")
    kwargs = _parse_mapping(f"{location}.kwargs", fields.get("kwargs", {}))
    tier = fields.get("tier")
    if tier is not None and tier not in tiers:
        raise BadRequest(f"{location}.tier: there is no tier {tier!r}; there are {', '.join(tiers) or 'none'}")
    if tier is not None and _CONDITION_KEY in kwargs:
        raise BadRequest(
            f"{location}: has both `tier` and {_CONDITION_KEY}: write the tier into the condition: tier == ..."
        )
    return UserExpectation(location=location, type=type_name, kwargs=kwargs, tier=None if tier is None else str(tier))


def _parse_list(location: str, fields: Mapping[str, object], key: str) -> list[object]:
    raw = fields.get(key, [])
    if not isinstance(raw, list):
        raise BadRequest(f"{location}: must be a list")
    return raw


def _parse_names(location: str, raw: object) -> list[str]:
    if not isinstance(raw, list) or not raw or not all(isinstance(item, str) and item for item in raw):
        raise BadRequest(f"{location}: must be a list of names or regular expressions, with at least one")
    return raw


def _parse_limit(location: str, raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 <= raw < float("inf"):
        raise BadRequest(f"{location}: must be a number, 0 or more")
    return float(raw)


def _parse_mapping(location: str, raw: object, known_keys: set[str] | None = None) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{location}: must be a mapping")
    fields = {str(key): value for key, value in raw.items()}
    unknown = set() if known_keys is None else fields.keys() - known_keys
    if unknown:
        raise BadRequest(f"{location}: unknown {min(unknown)!r}; known are {', '.join(sorted(known_keys or ()))}")
    return fields
