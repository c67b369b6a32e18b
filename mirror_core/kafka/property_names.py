"""Names of client properties. One that librdkafka does not know is a mistake: else it is found late, or never."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from confluent_kafka import KafkaException, Producer

from mirror_core.model.errors import BadRequest
from mirror_core.model.ruling import ENTRIES
from mirror_core.model.text import suggestion

HONOURED: Final = frozenset(
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
"""Of security's properties those that our own connections go by, and librdkafka's: what only one of them knows would be
thought to protect both."""
_COMMON: Final = (
    *ENTRIES,
    *sorted(HONOURED),
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "data",
    "principal",
    "security.protocol",
    "socket.timeout.ms",
)
"""What a name may have been meant to be."""
_SECURITY: Final = ("ssl.", "sasl.", "https.", "enable.ssl.", "enable.sasl.")
_NONE: Final = "mirrorbook.stops.here"
"""No property of librdkafka's: with it no client is ever made, whatever is asked of it before."""


def check_names(where: str, names: Iterable[str]) -> None:
    """BadRequest for the first name that is none of librdkafka's, with the one that may be meant; or one of security's
    that not all of our connections would go by."""
    for name in names:
        if _is_unknown(name):
            raise BadRequest(f"{where}.{name}: there is no such property of Kafka's client{suggestion(name, _COMMON)}")
        if name.startswith(_SECURITY) and name not in HONOURED:
            raise BadRequest(
                f"{where}.{name}: not all of Mirrorbook's connections would go by it: leave it out; of security's "
                f"properties they know security.protocol, {', '.join(sorted(HONOURED))}"
            )


@lru_cache(maxsize=256)
def _is_unknown(name: str) -> bool:
    """Properties of Java's client, which librdkafka knows by name and does not take, count as unknown."""
    try:
        Producer({name: "", _NONE: ""})
    except KafkaException as error:
        words: str = error.args[0].str()
        return words.startswith("Java ") or words == f'No such configuration property: "{name}"'
    except TypeError:
        return False  # a function, which no file can name: whoever reads values refuses it
    raise AssertionError(f"librdkafka has a property {_NONE}")
