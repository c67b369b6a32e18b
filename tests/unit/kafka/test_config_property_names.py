"""A name that nobody reads is a mistake: it is told at once, with what may be meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from mirrorbook_airflow import kafka_type

from mirror_core.kafka.config import SUPPORTED_SECURITY, load_config
from mirror_core.model.errors import BadRequest

EAST = {"bootstrap.servers": "east:9092"}


def loaded(folder: Path, **sections: object) -> None:
    path = folder / "mirrorbook.yaml"
    path.write_text(yaml.safe_dump({"clusters": {"east": EAST}, **sections}), encoding="utf-8")
    load_config(path)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ssl.ca.locaton", "ssl.ca.location"),
        ("sasl.usernme", "sasl.username"),
        ("principals", "principal"),
        ("bootstrap_servers", "bootstrap.servers"),
        ("ssl.truststore.location", None),
        ("sasl.jaas.config", None),
        ("x", None),
    ],
)
def test_a_property_that_no_client_reads_is_refused(tmp_path: Path, name: str, meant: str | None) -> None:
    with pytest.raises(BadRequest, match=rf"clusters\.east\.{name}: there is no such property") as refused:
        loaded(tmp_path, clusters={"east": {**EAST, name: "hush"}})
    assert (f"is {meant} meant?" in str(refused.value)) is (meant is not None)
    assert "hush" not in str(refused.value)


def test_one_of_the_data_principal_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"sasl\.pasword: there is no such property .* is sasl\.password meant"):
        loaded(tmp_path, clusters={"east": {**EAST, "data": {"sasl.pasword": "hush"}}})


@pytest.mark.parametrize("name", ["fetch.min.bytes", "linger.ms", "sasl.mechanisms", "client.rack", "ssl.crl.location"])
def test_whatever_librdkafka_knows_is_taken(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    loaded(tmp_path, clusters={"east": {**EAST, name: "1"}})
    assert capfd.readouterr() == ("", ""), "a client was made, and has something to say"


@pytest.mark.parametrize(
    "name",
    [
        "ssl.cipher.suites",
        "ssl.sigalgs.list",
        "ssl.curves.list",
        "ssl.key.pem",
        "ssl.certificate.pem",
        "ssl.keystore.location",
        "sasl.kerberos.keytab",
        "sasl.oauthbearer.config",
        "enable.ssl.certificate.verification",
        "enable.sasl.oauthbearer.unsecure.jwt",
    ],
)
def test_a_property_of_securitys_that_not_all_connections_go_by_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest, match=rf"clusters\.east\.{name}: not all of Mirrorbook's connections") as refused:
        loaded(tmp_path, clusters={"east": {**EAST, "data": {name: "hush"}}})
    assert "ssl.crl.location" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_every_property_that_is_honoured_is_one_of_librdkafkas(tmp_path: Path) -> None:
    loaded(tmp_path, clusters={"east": {**EAST, **dict.fromkeys(SUPPORTED_SECURITY, "x")}})


def test_a_section_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"there is no section `mirors:`; is mirrors meant\?"):
        loaded(tmp_path, mirors={})


def test_a_connection_of_airflows_may_say_the_same_of_security() -> None:
    assert SUPPORTED_SECURITY | {"bootstrap.servers", "security.protocol"} == kafka_type._CLIENT_PROPERTIES
