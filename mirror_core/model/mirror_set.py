from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName


class SetOrder(StrEnum):
    SIDE_BY_SIDE = "side_by_side"
    """All are fenced together. None is promoted before all are ready."""
    IN_ORDER = "in_order"
    """In the listed order; each is done before the next is fenced."""


@dataclass(frozen=True, slots=True)
class MirrorSet:
    """At least one mirror, without duplicates."""

    name: str
    mirrors: tuple[MirrorName, ...]
    order: SetOrder = SetOrder.SIDE_BY_SIDE


def parse_sets(location: str, section: object) -> dict[str, MirrorSet]:
    """Raises BadRequest with the location of a mistake."""
    if not isinstance(section, dict):
        raise BadRequest(f"{location}: must be a mapping of a set's name to its mirrors")
    return {str(name): _parse_set(f"{location}.{name}", str(name), raw) for name, raw in section.items()}


def _parse_set(location: str, name: str, raw: object) -> MirrorSet:
    if not isinstance(raw, dict) or raw.keys() - {"mirrors", "order"}:
        raise BadRequest(f"{location}: must be a mapping with `mirrors` and, if you like, `order`")
    mirrors, order = raw.get("mirrors"), raw.get("order", SetOrder.SIDE_BY_SIDE)
    if (
        not isinstance(mirrors, list)
        or not mirrors
        or not all(isinstance(mirror, str) and mirror for mirror in mirrors)
    ):
        raise BadRequest(f"{location}.mirrors: must be a list of mirrors' names")
    if duplicates := sorted({mirror for mirror in mirrors if mirrors.count(mirror) > 1}):
        raise BadRequest(f"{location}.mirrors: {', '.join(duplicates)} is listed twice")
    if order not in [*SetOrder]:
        raise BadRequest(f"{location}.order: {order!r} is neither {' nor '.join(SetOrder)}")
    return MirrorSet(name, tuple(MirrorName(mirror) for mirror in mirrors), SetOrder(order))
