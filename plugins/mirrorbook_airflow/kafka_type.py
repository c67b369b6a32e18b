"""Connections of Airflow's own type `kafka` (its provider apache-kafka): the extra is a client's properties, as JSON.

Taken are those that say where a cluster is and who we are. What is for consumers and producers (group.id, timeouts) is
the provider's. A way to log in that we don't know is refused: without it another one would be tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mirror_core.model.errors import BadRequest

CONN_TYPE: Final = "kafka"
_TAKEN: Final = frozenset(
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
_OF_LOGINS: Final = ("sasl.", "ssl.", "security.", "enable.ssl.", "enable.sasl.")
_OURS: Final = "mirrorbook."
_PRINCIPAL: Final = "mirrorbook.principal"
_DATA: Final = {"mirrorbook.data.username": "sasl.username", "mirrorbook.data.password": "sasl.password"}


def properties_of(name: str, extra: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of the control principal, and what differs for the data principal. BadRequest for what cannot be honoured."""
    unknown = [
        key
        for key in extra
        if (key.startswith(_OF_LOGINS) and key not in _TAKEN)
        or (key.startswith(_OURS) and key not in (_PRINCIPAL, *_DATA))
    ]
    if unknown:
        raise BadRequest(
            f"connection {name}: its extra has {', '.join(sorted(unknown))}, which Mirrorbook does not know"
        )
    control = {key: value for key, value in extra.items() if key in _TAKEN}
    if _PRINCIPAL in extra:
        control["principal"] = extra[_PRINCIPAL]
    return control, {ours: extra[key] for key, ours in _DATA.items() if key in extra}
