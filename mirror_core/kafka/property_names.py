"""Names of client properties: a mistyped one would show late or never."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from confluent_kafka import KafkaException, Producer

from mirror_core.model.errors import BadRequest
from mirror_core.model.ruling import AUTHORIZER_KEYS
from mirror_core.model.text import format_suggestion

SUPPORTED_SECURITY: Final = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)
"""Honoured by our connections and by librdkafka: one known to only one of them would seem to protect
both."""
_COMMON_NAMES: Final = (
    *AUTHORIZER_KEYS,
    *sorted(SUPPORTED_SECURITY),
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "data",
    "principal",
    "security.protocol",
    "socket.timeout.ms",
)
"""Candidates for suggestions."""
_SECURITY_PREFIXES: Final = ("ssl.", "sasl.", "https.", "enable.ssl.", "enable.sasl.")
_INVALID_PROPERTY: Final = "mirrorbook.stops.here"
"""Unknown to librdkafka, so that no client is ever created."""


def check_property_names(where: str, names: Iterable[str]) -> None:
    """BadRequest for unknown names, with a suggestion, and for security properties not honoured
    everywhere."""
    for name in names:
        if _is_unknown_property(name):
            raise BadRequest(
                f"{where}.{name}: there is no such property of Kafka's client{format_suggestion(name, _COMMON_NAMES)}"
            )
        if name.startswith(_SECURITY_PREFIXES) and name not in SUPPORTED_SECURITY:
            raise BadRequest(
                f"{where}.{name}: not all of Mirrorbook's connections would go by it: leave it out; of security's "
                f"properties they know security.protocol, {', '.join(sorted(SUPPORTED_SECURITY))}"
            )


@lru_cache(maxsize=256)
def _is_unknown_property(name: str) -> bool:
    """Java-only properties count as unknown."""
    try:
        Producer({name: "", _INVALID_PROPERTY: ""})
    except KafkaException as error:
        message: str = error.args[0].str()
        return message.startswith("Java ") or message == f'No such configuration property: "{name}"'
    except TypeError:
        return False  # a callback, which no file can set
    raise AssertionError(f"librdkafka has a property {_INVALID_PROPERTY}")
