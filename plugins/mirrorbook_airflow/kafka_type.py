"""Connections of Airflow's own type `kafka` (its provider apache-kafka): the extra is a client's properties, as JSON.

Taken are those that say where a cluster is and who we are. What is for consumers and producers (group.id, timeouts) is
the provider's. A way to log in that we don't know is refused: without it another one would be tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mirror_core.model.errors import BadRequest

CONN_TYPE: Final = "kafka"
_CLIENT_PROPERTIES: Final = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.ca.pem",
        "ssl.crl.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
_SECURITY_PREFIXES: Final = ("sasl.", "ssl.", "security.", "enable.ssl.", "enable.sasl.")
_OWN_PREFIX: Final = "mirrorbook."
_PRINCIPAL_KEY: Final = "mirrorbook.principal"
_DATA_PROPERTIES: Final = {"mirrorbook.data.username": "sasl.username", "mirrorbook.data.password": "sasl.password"}


def split_properties(name: str, extra: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Properties of the control principal, and those that differ for the data principal. Raises BadRequest."""
    unknown = [
        key
        for key in extra
        if (key.startswith(_SECURITY_PREFIXES) and key not in _CLIENT_PROPERTIES)
        or (key.startswith(_OWN_PREFIX) and key not in (_PRINCIPAL_KEY, *_DATA_PROPERTIES))
    ]
    if unknown:
        raise BadRequest(
            f"connection {name}: its extra has {', '.join(sorted(unknown))}, which Mirrorbook does not know"
        )
    control = {key: value for key, value in extra.items() if key in _CLIENT_PROPERTIES}
    if _PRINCIPAL_KEY in extra:
        control["principal"] = extra[_PRINCIPAL_KEY]
    return control, {client_key: extra[key] for key, client_key in _DATA_PROPERTIES.items() if key in extra}
