from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Hook, parse_hooks
from mirror_core.model.name_patterns import name_pattern
from mirror_core.model.names import MirrorName, get_base_name

OWNER_KEY: Final = "owner"
"""Key of a plan figure: whom to call."""
_MAX_OWNER_LENGTH: Final = 200
_SECTION_KEYS: Final = frozenset({OWNER_KEY, "switch", "together"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSections:
    """Settings by mirror. Mirrors without a setting are absent."""

    switch_hooks: Mapping[MirrorName, tuple[Hook, ...]] = field(default_factory=dict)
    consistency_groups: Mapping[MirrorName, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    owners: Mapping[MirrorName, str] = field(default_factory=dict)

    def get_owner(self, mirror: MirrorName) -> str:
        return get_for_mirror(self.owners, mirror, "")


def get_for_mirror(values: Mapping[MirrorName, T], mirror: MirrorName, default: T) -> T:
    """Looks a reverse mirror up by its base name, too."""
    return values.get(mirror, values.get(get_base_name(mirror), default))


def parse_mirror_sections(path: str, mirrors: object) -> MirrorSections:
    """Raises BadRequest with the location of a mistake."""
    if not isinstance(mirrors, dict):
        raise BadRequest(f"{path}: `mirrors:` must be a mapping of a mirror's name to its section")
    for name, section in mirrors.items():
        if not isinstance(section, dict) or not section or section.keys() - _SECTION_KEYS:
            raise BadRequest(
                f"{path}: mirrors.{name}: must be a mapping with the keys `owner`, `switch` and `together` only"
            )

    def parse_each(key: str, parse_value: Callable[[str, object], T]) -> dict[MirrorName, T]:
        return {
            MirrorName(str(name)): parse_value(f"{path}: mirrors.{name}.{key}", section[key])
            for name, section in mirrors.items()
            if key in section
        }

    return MirrorSections(
        switch_hooks=parse_each("switch", parse_hooks),
        consistency_groups=parse_each("together", _parse_topic_groups),
        owners=parse_each(OWNER_KEY, _parse_owner),
    )


def _parse_owner(location: str, raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable() or len(raw) > _MAX_OWNER_LENGTH:
        raise BadRequest(f"{location}: must be whom to call, in one line of at most {_MAX_OWNER_LENGTH} characters")
    return raw.strip()


def _parse_topic_groups(location: str, raw: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(raw, list) or not all(
        isinstance(group, list) and group and all(isinstance(pattern, str) for pattern in group) for group in raw
    ):
        raise BadRequest(f"{location}: must be a list of lists of regular expressions")
    for pattern in (pattern for group in raw for pattern in group):
        name_pattern(f"{location}:", pattern)
    return tuple(tuple(group) for group in raw)
