"""What Airflow's provider discovery is told."""

from __future__ import annotations

from typing import Any


def _text(label: str, description: str, **schema: object) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


def get_provider_info() -> dict[str, Any]:
    """The connection type `kafka_cluster` and its form."""
    fields = {
        "security_protocol": {
            "label": "Security protocol",
            "schema": {
                "type": "string",
                "default": "PLAINTEXT",
                "enum": ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
            },
        },
        "sasl_mechanism": {
            "label": "SASL mechanism",
            "schema": {"type": ["string", "null"], "enum": ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", None]},
        },
        "data_username": _text(
            "Data principal", "User of the copying tasks, with fewer rights than the login above; empty: the same"
        ),
        "data_password": _text("Data principal's password", "Kept encrypted by Airflow", format="password"),
        "ssl_ca_location": _text("CA file", "Path on the workers of the CA certificates (PEM); empty: the system's"),
        "ssl_certificate_location": _text("Client certificate file", "Path on the workers (PEM), for mutual TLS"),
        "ssl_key_location": _text("Client key file", "Path on the workers (PEM), for mutual TLS"),
        "ssl_key_password": _text("Client key's password", "Kept encrypted by Airflow", format="password"),
        "principal": _text("Name at the brokers", "User:..., if not the login or the certificate's subject"),
    }
    return {
        "package-name": "mirrorbook",
        "name": "Mirrorbook",
        "description": "Disaster recovery for Apache Kafka: mirrors, failover and failback runbooks",
        "connection-types": [
            {
                "connection-type": "kafka_cluster",
                "hook-name": "Kafka cluster (Mirrorbook)",
                "hook-class-name": "mirrorbook_airflow.hooks.KafkaClusterHook",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "port", "extra"],
                    "relabeling": {
                        "host": "Bootstrap servers",
                        "login": "Control principal",
                        "password": "Control principal's password",
                    },
                    "placeholders": {"host": "broker-1:9092,broker-2:9092"},
                },
                "conn-fields": fields,
            }
        ],
    }
