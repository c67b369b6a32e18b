from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from mirror_core.model.errors import BadRequest
from mirror_core.model.names import MirrorName


class Order(StrEnum):
    SIDE_BY_SIDE = "side_by_side"
    """All are fenced together. None is promoted before all are ready."""
    IN_ORDER = "in_order"
    """In the listed order; each is done before the next is fenced."""


@dataclass(frozen=True, slots=True)
class MirrorSet:
    """At least one mirror, without duplicates."""

    name: str
    mirrors: tuple[MirrorName, ...]
    order: Order = Order.SIDE_BY_SIDE


def sets_of(where: str, section: object) -> dict[str, MirrorSet]:
    """Raises BadRequest with the location of a mistake."""
    if not isinstance(section, dict):
        raise BadRequest(f"{where}: must be a mapping of a set's name to its mirrors")
    return {str(name): _set(f"{where}.{name}", str(name), raw) for name, raw in section.items()}


def _set(where: str, name: str, raw: object) -> MirrorSet:
    if not isinstance(raw, dict) or raw.keys() - {"mirrors", "order"}:
        raise BadRequest(f"{where}: must be a mapping with `mirrors` and, if you like, `order`")
    mirrors, order = raw.get("mirrors"), raw.get("order", Order.SIDE_BY_SIDE)
    if not isinstance(mirrors, list) or not mirrors or not all(isinstance(one, str) and one for one in mirrors):
        raise BadRequest(f"{where}.mirrors: must be a list of mirrors' names")
    if twice := sorted({one for one in mirrors if mirrors.count(one) > 1}):
        raise BadRequest(f"{where}.mirrors: {', '.join(twice)} is listed twice")
    if order not in [*Order]:
        raise BadRequest(f"{where}.order: {order!r} is neither {' nor '.join(Order)}")
    return MirrorSet(name, tuple(MirrorName(one) for one in mirrors), Order(order))
