from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.rights import broker_setting
from mirror_core.model.errors import MissingPermission, RemoteFault

KEEP_PRODUCERS: Final = "producer.id.expiration.ms"
FOREVER_MS: Final = "2147483647"


@dataclass(frozen=True, slots=True)
class Forgetful:
    lines: tuple[str, ...]
    """Idempotence depends on unexpired producer ids."""
    unseen: tuple[str, ...]


def forgetful(client: ClusterClient, brokers: Sequence[int]) -> Forgetful:
    found, unseen = list[str](), list[str]()
    for broker in brokers:
        try:
            setting = broker_setting(client, broker, KEEP_PRODUCERS)
        except MissingPermission as error:
            unseen.append(f"{KEEP_PRODUCERS} could not be looked at: {error}")
            break  # other brokers would refuse, too
        except RemoteFault as error:
            unseen.append(f"{KEEP_PRODUCERS} of broker {broker} could not be looked at: {error}")
            continue
        if setting is not None and setting != (FOREVER_MS, True):
            found.append(
                f"broker {broker}: {KEEP_PRODUCERS} is {setting[0]}: as a destination, set it to {FOREVER_MS} in "
                "server.properties (not dynamically: a restart loads logs before dynamic settings), or copying of old "
                "records loses its protection against appending twice"
            )
    return Forgetful(tuple(found), tuple(unseen))
