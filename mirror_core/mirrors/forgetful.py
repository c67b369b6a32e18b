from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirror_core.kafka.client import ClusterClient
from mirror_core.kafka.rights import fetch_broker_setting
from mirror_core.model.errors import MissingPermission, RemoteFault

PRODUCER_EXPIRY_KEY: Final = "producer.id.expiration.ms"
MAX_EXPIRY_MS: Final = "2147483647"


@dataclass(frozen=True, slots=True)
class ProducerExpiryCheck:
    lines: tuple[str, ...]
    """Idempotence depends on unexpired producer ids."""
    unknown: tuple[str, ...]


def check_producer_expiry(client: ClusterClient, brokers: Sequence[int]) -> ProducerExpiryCheck:
    lines, unknown = list[str](), list[str]()
    for broker in brokers:
        try:
            setting = fetch_broker_setting(client, broker, PRODUCER_EXPIRY_KEY)
        except MissingPermission as error:
            unknown.append(f"{PRODUCER_EXPIRY_KEY} could not be looked at: {error}")
            break  # other brokers would refuse, too
        except RemoteFault as error:
            unknown.append(f"{PRODUCER_EXPIRY_KEY} of broker {broker} could not be looked at: {error}")
            continue
        if setting is not None and setting != (MAX_EXPIRY_MS, True):
            lines.append(
                f"broker {broker}: {PRODUCER_EXPIRY_KEY} is {setting[0]}: as a destination, set it to {MAX_EXPIRY_MS} in "
                "server.properties (not dynamically: a restart loads logs before dynamic settings), or copying of old "
                "records loses its protection against appending twice"
            )
    return ProducerExpiryCheck(tuple(lines), tuple(unknown))
