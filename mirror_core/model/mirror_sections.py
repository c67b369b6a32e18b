from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from mirror_core.model.errors import BadRequest
from mirror_core.model.hooks import Hook, hooks_of
from mirror_core.model.name_patterns import name_pattern
from mirror_core.model.names import MirrorName, base_name

OWNER: Final = "owner"
"""Key of a plan figure: whom to call."""
_MOST: Final = 200
_KEYS: Final = frozenset({OWNER, "switch", "together"})

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSections:
    """Settings by mirror. Mirrors without a setting are absent."""

    switch: Mapping[MirrorName, tuple[Hook, ...]] = field(default_factory=dict)
    together: Mapping[MirrorName, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    owners: Mapping[MirrorName, str] = field(default_factory=dict)

    def owner(self, mirror: MirrorName) -> str:
        return of_mirror(self.owners, mirror, "")


def of_mirror(named: Mapping[MirrorName, T], mirror: MirrorName, nothing: T) -> T:
    """Looks a reverse mirror up by its base name, too."""
    return named.get(mirror, named.get(base_name(mirror), nothing))


def mirror_sections(path: str, mirrors: object) -> MirrorSections:
    """Raises BadRequest with the location of a mistake."""
    if not isinstance(mirrors, dict):
        raise BadRequest(f"{path}: `mirrors:` must be a mapping of a mirror's name to its section")
    for name, section in mirrors.items():
        if not isinstance(section, dict) or not section or section.keys() - _KEYS:
            raise BadRequest(
                f"{path}: mirrors.{name}: must be a mapping with the keys `owner`, `switch` and `together` only"
            )

    def each(key: str, read: Callable[[str, object], T]) -> dict[MirrorName, T]:
        return {
            MirrorName(str(name)): read(f"{path}: mirrors.{name}.{key}", section[key])
            for name, section in mirrors.items()
            if key in section
        }

    return MirrorSections(
        switch=each("switch", hooks_of), together=each("together", _together), owners=each(OWNER, _owner)
    )


def _owner(where: str, raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable() or len(raw) > _MOST:
        raise BadRequest(f"{where}: must be whom to call, in one line of at most {_MOST} characters")
    return raw.strip()


def _together(where: str, raw: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(raw, list) or not all(
        isinstance(group, list) and group and all(isinstance(one, str) for one in group) for group in raw
    ):
        raise BadRequest(f"{where}: must be a list of lists of regular expressions")
    for one in (one for group in raw for one in group):
        name_pattern(f"{where}:", one)
    return tuple(tuple(group) for group in raw)
