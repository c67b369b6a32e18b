"""The sandbox's users and their random passwords, kept in one private Java properties file."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.state import write_atomically

SECRETS_FILE: Final = "secrets.properties"
ADMIN: Final = "admin"  # super user, and the brokers' own identity
CONTROL: Final = "mirror-control"
DATA: Final = "mirror-data"
APP: Final = "app"
USERS: Final = (ADMIN, CONTROL, DATA, APP)


def create_passwords(folder: Path) -> None:
    """Write a fresh password for each user. Hex needs no escaping in properties, JAAS, YAML or arguments."""
    lines = (f"{user}={secrets.token_hex(24)}\n" for user in USERS)
    write_atomically(folder / SECRETS_FILE, "".join(lines))


def load_passwords(folder: Path) -> Mapping[str, str]:
    return read_passwords(folder / SECRETS_FILE)


def read_passwords(path: Path, users: Sequence[str] = USERS) -> Mapping[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise SandboxFailed(
            f"{path} is gone, and with it the passwords that the brokers know: "
            "`mirrorbook sandbox down --delete`, then `up`"
        ) from None
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    if missing := [user for user in users if user not in found]:
        raise SandboxFailed(
            f"{path} lacks the passwords of {', '.join(missing)}: `mirrorbook sandbox down --delete`, then `up`"
        )
    return found


def scram_config(bootstrap: str, user: str, password: str) -> dict[str, str]:
    """librdkafka properties. They hold the password: not for logs."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": password,
    }
