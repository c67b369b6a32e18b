"""Three lists of requirements: what is promised to users, what is asked for here, and what is locked."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.wheel_build import OLDEST

REPOSITORY: Final = Path(__file__).resolve().parents[3]
PINNED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def promised() -> list[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(line) for line in [*project["dependencies"], *(line for extra in extras for line in extra)]]


def asked_for() -> list[Requirement]:
    lines = (REPOSITORY / "requirements.in").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def locked() -> dict[str, set[str]]:
    """Versions by name; several where markers choose."""
    found: dict[str, set[str]] = {}
    for name, version in PINNED.findall((REPOSITORY / "requirements.lock").read_text(encoding="utf-8")):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def misfits(requirements: list[Requirement]) -> list[str]:
    """What the lock has not, or in a version that is not wanted."""
    pins = locked()
    return [
        f"{wanted}: locked are {sorted(pins.get(canonicalize_name(wanted.name), ()))}"
        for wanted in requirements
        if not (versions := pins.get(canonicalize_name(wanted.name)))
        or not all(version in wanted.specifier for version in versions)
    ]


def test_what_is_tested_is_what_users_may_install() -> None:
    assert misfits(promised()) == []


def test_what_is_asked_for_is_locked() -> None:
    assert misfits(asked_for()) == []


def test_nothing_is_asked_for_that_is_not_promised_nor_the_other_way_round() -> None:
    assert {canonicalize_name(r.name) for r in asked_for()} == {canonicalize_name(r.name) for r in promised()}


def test_the_versions_of_spark_that_platforms_bring_may_be_installed_and_none_that_nobody_has_run() -> None:
    """pip takes the newest that is allowed."""
    specifiers = [wanted.specifier for wanted in promised() if wanted.name == "pyspark"]
    assert len(specifiers) == 2, "the extras spark and sandbox"
    for specifier in specifiers:
        known = ("3.4.4", "3.5.0", "3.5.6", "4.0.0", "4.1.4", "4.2.1", "4.3.0")
        allowed = [version for version in known if version in specifier]
        assert allowed == ["3.5.0", "3.5.6", "4.0.0", "4.1.4", "4.2.1"]


def test_no_address_is_locked() -> None:
    for name in ("requirements.lock", "requirements-setup.txt"):
        assert "://" not in (REPOSITORY / name).read_text(encoding="utf-8")


def test_the_oldest_airflow_that_is_promised_is_the_one_that_a_drill_installs() -> None:
    (airflow,) = (wanted for wanted in promised() if wanted.name == "apache-airflow")
    (oldest,) = Requirement(OLDEST).specifier
    assert f">={oldest.version}" in map(str, airflow.specifier)
