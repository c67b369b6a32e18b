"""One TLS context for all connections that are configured alike, and another one when its files have changed."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirror_core.kafka import tls
from mirror_core.kafka.tls import get_tls_context
from mirror_core.model.errors import BadRequest
from tests.cluster.secure import Authority, named

CA, OWN, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    files = {CA: str(tmp_path / "ca"), OWN: str(tmp_path / "own"), KEY: str(tmp_path / "key")}
    renew(files)
    return files


def renew(files: dict[str, str]) -> None:
    authority = Authority("test")
    authority.write(Path(files[CA]))
    authority.issue(named("client"), Path(files[OWN]), Path(files[KEY]))


def trusted(context: ssl.SSLContext) -> list[object]:
    return [one["serialNumber"] for one in context.get_ca_certs()]


def test_connections_that_are_configured_alike_share_a_context(given: dict[str, str]) -> None:
    context = get_tls_context("west", given)
    assert get_tls_context("west", dict(given)) is context
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    unnamed = get_tls_context("west", {**given, "ssl.endpoint.identification.algorithm": "none"})
    assert (unnamed.check_hostname, unnamed.verify_mode) == (False, ssl.CERT_REQUIRED)
    assert get_tls_context("west", {CA: given[CA]}) not in (context, unnamed), "without a certificate of its own"


@pytest.mark.parametrize("how", ["written over", "replaced"])
def test_files_that_were_renewed_are_read_anew(given: dict[str, str], how: str) -> None:
    """As tools do it, and as Kubernetes does."""
    old = get_tls_context("west", given)
    if how == "written over":
        before = {key: Path(path).stat().st_mtime_ns for key, path in given.items()}
        renew(given)
        for key, path in given.items():  # the clock of a file system may be coarse
            os.utime(path, ns=(before[key] + 1_000_000, before[key] + 1_000_000))
    else:
        beside = {key: f"{path}.new" for key, path in given.items()}
        renew(beside)
        for key, path in given.items():
            Path(beside[key]).replace(path)
    new = get_tls_context("west", given)
    assert new is not old
    assert trusted(new) != trusted(old)
    assert get_tls_context("west", given) is new


def test_the_authorities_of_the_system_count_where_none_are_named(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", given[CA])
    assert tls._system_ca_file() is not None
    old = get_tls_context("west", {})
    assert get_tls_context("west", {}) is old
    renew(given)
    os.utime(given[CA], ns=(1, 1))
    assert get_tls_context("west", {}) is not old
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    assert tls._system_ca_file() is None
    assert get_tls_context("west", {}) is not None


def test_what_cannot_be_used_is_said_each_time_and_names_the_setting(given: dict[str, str]) -> None:
    Path(given[KEY]).write_text("no key", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(
            BadRequest, match=r"^cluster west: TLS files cannot be used: .*; check ssl.ca.location, ssl"
        ):
            get_tls_context("west", given)
    Path(given[OWN]).unlink()
    with pytest.raises(BadRequest, match=r"^cluster west: ssl.certificate.location: .* cannot be read: No such file"):
        get_tls_context("west", given)


@pytest.mark.parametrize("how", ["another key", "no key", "no certificate"])
def test_files_that_are_half_replaced_are_waited_for_where_they_were_good(
    given: dict[str, str], how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passed_s = [0.0]
    monkeypatch.setattr(tls, "time", SimpleNamespace(monotonic=lambda: passed_s[0]))
    good, whole = get_tls_context("west", given), {key: Path(path).read_bytes() for key, path in given.items()}
    other = {key: f"{path}.other" for key, path in given.items()}
    renew(other)
    match how:
        case "another key":
            Path(other[KEY]).replace(given[KEY])
        case "no key":
            Path(given[KEY]).unlink()
        case _:
            Path(given[OWN]).write_text("", encoding="utf-8")
    with caplog.at_level("WARNING", "mirror_core"):
        for _ in range(2):
            assert get_tls_context("west", given) is good
    assert [r.getMessage() for r in caplog.records if "connects as before" in r.getMessage()] != []
    assert len(caplog.records) == 1, "said once"
    passed_s[0] = 2 * tls._REPLACEMENT_GRACE_S
    with pytest.raises(BadRequest, match=r"^cluster west: "):
        get_tls_context("west", given)
    with pytest.raises(BadRequest, match=r"^cluster east: "):  # another one never knew good ones
        get_tls_context("east", given)
    for key, text in whole.items():
        Path(given[key]).write_bytes(text)
    new = get_tls_context("west", given)
    Path(given[KEY]).unlink()
    assert get_tls_context("west", given) is new, "they were good again: another minute"
