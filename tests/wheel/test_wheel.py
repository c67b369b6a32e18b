"""What a user installs: the wheel, with its core dependencies as locked, where nothing else is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.wheel_build import AS_OF_OLDEST, OLDEST

REPOSITORY: Final = Path(__file__).resolve().parents[2]
UV: Final = str(Path(sys.executable).with_name("uv"))
MADE_OF: Final = (
    *("pyproject.toml", "README.md", "LICENSE"),
    *("mirror_core", "mirrorbook_tools", "plugins", "dags", "monitoring", "deploy"),
)
PACKAGES: Final = (
    (REPOSITORY, "mirror_core"),
    (REPOSITORY, "mirrorbook_tools"),
    (REPOSITORY / "plugins", "mirrorbook"),
    (REPOSITORY / "plugins", "mirrorbook_airflow"),
)
LEFT_BEHIND: Final = shutil.ignore_patterns("__pycache__", "*.egg-info")
BARE: Final = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "MIRRORBOOK", "VIRTUAL_ENV", "AIRFLOW"))
}
"""No way back to this checkout and its environment."""
EXTRAS: Final = ("mirror_core.spark", "mirrorbook_tools.sandbox", "mirrorbook_tools.demo", "mirror_core.__main__")
"""Rooms that need an extra; and what runs the command when it is imported."""
IMPORT_ALL: Final = """
import importlib, json, pkgutil, sys
import mirror_core, mirrorbook_tools
imported, missing = [], {}
for found in (
    *pkgutil.walk_packages(mirror_core.__path__, "mirror_core."),
    *pkgutil.walk_packages(mirrorbook_tools.__path__, "mirrorbook_tools."),
):
    if not found.name.startswith(tuple(sys.argv[1:])):
        try:
            importlib.import_module(found.name)
            imported.append(found.name)
        except ImportError as error:
            missing[found.name] = str(error)
print(json.dumps({"from": mirror_core.__path__[0], "imported": imported, "missing": missing}))
"""
PROVIDER: Final = """
from importlib.metadata import entry_points
(found,) = entry_points(group="apache_airflow_provider")
print(found.load()()["connection-types"][0]["connection-type"])
"""


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    """What it said, on both streams."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300, env=BARE, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{words}: {done.returncode}\n{said}"
    assert "Traceback" not in said
    return said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing of an earlier build is in it."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in MADE_OF:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, folder / name, ignore=LEFT_BEHIND)
        else:
            shutil.copy(REPOSITORY / name, folder / name)
    with_ours = ("--no-build-isolation", "--python", sys.executable)  # setuptools as locked
    run(UV, "build", "--wheel", *with_ours, "--out-dir", "dist", ".", cwd=folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the core only, in the versions of the lock, checked."""
    folder = tmp_path_factory.mktemp("bare")
    run(UV, "venv", "--python", sys.executable, "env", cwd=folder)
    locked = ("--constraints", REPOSITORY / "requirements.lock", "--verify-hashes")
    run(UV, "pip", "install", "--python", "env/bin/python", *locked, wheel, cwd=folder)
    return folder / "env" / "bin"


def test_the_wheel_holds_every_file_of_its_packages_and_nothing_else(wheel: Path) -> None:
    source = {
        path.relative_to(root).as_posix()
        for root, package in PACKAGES
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    shared = {name.partition(".data/data/share/mirrorbook/")[2] for name in packed} - {""}
    dags = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "dags").glob("*.py")}

    deploy = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "deploy").glob("*/*")}

    assert shared == {*dags, *deploy, "monitoring/alerts.yaml", "monitoring/dashboard.json"}
    assert {name for name in packed if ".data/" not in name} == source
    assert {"mirror_core/py.typed", "mirrorbook_tools/sandbox/jars.lock"} < packed
    assert any(name.endswith(".html.j2") for name in packed)


def test_every_module_of_the_core_and_the_tools_imports_with_the_core_alone(bare: Path, tmp_path: Path) -> None:
    found = json.loads(run(bare / "python", "-c", IMPORT_ALL, *EXTRAS, cwd=tmp_path))

    assert found["missing"] == {}
    assert {"mirror_core.cli.main", "mirrorbook_tools.cli.log", "mirrorbook_tools.logdir.layout"} < {*found["imported"]}
    assert Path(found["from"]).is_relative_to(bare.parent), "the checkout was imported, not the wheel"


def test_airflow_finds_the_provider(bare: Path, tmp_path: Path) -> None:
    assert run(bare / "python", "-c", PROVIDER, cwd=tmp_path).strip() == "kafka_cluster"


EXAMPLES: Final = """
from airflow.dag_processing.bundles.manager import DagBundlesManager
print("bundles:", *sorted(bundle.name for bundle in DagBundlesManager().get_all_dag_bundles()))
"""
"""What the DAG processor does at its start: it asks every provider for example DAGs."""
BUNDLES: Final = (
    {"name": "ours", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}},
    {"name": "mirrorbook", "classpath": "mirrorbook_airflow.bundle.MirrorbookBundle", "kwargs": {}},
)
"""As documentation tells it; the first one is a team's own."""
OWN_DAG: Final = """
from airflow.sdk import DAG
dag = DAG("theirs", schedule=None)
"""


LOCKED: Final = ("--constraints", str(REPOSITORY / "requirements.lock"), "--verify-hashes")


@pytest.mark.parametrize(
    ("airflow_before", "versions"),
    [
        pytest.param((), LOCKED, id="locked"),
        pytest.param((OLDEST, *AS_OF_OLDEST), (), id="oldest", marks=pytest.mark.slow),
        pytest.param((), (), id="newest", marks=pytest.mark.slow),
    ],
)
def test_a_fresh_airflow_with_the_wheel_has_the_dags_the_connection_type_and_the_page(
    airflow_before: tuple[str, ...],
    versions: tuple[str, ...],
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(UV, "venv", "--python", sys.executable, "env", cwd=tmp_path)
    python, airflow = tmp_path / "env/bin/python", tmp_path / "env/bin/airflow"
    if airflow_before:
        run(UV, "pip", "install", "--python", python, *airflow_before, cwd=tmp_path)
    run(UV, "pip", "install", "--python", python, *versions, f"{wheel}[airflow]", cwd=tmp_path)
    own = tmp_path / "airflow" / "dags"
    own.mkdir(parents=True)
    (own / "theirs.py").write_text(OWN_DAG, encoding="utf-8")
    monkeypatch.setitem(BARE, "AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setitem(BARE, "AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    monkeypatch.setitem(BARE, "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(BUNDLES))

    run(airflow, "db", "migrate", cwd=tmp_path)
    run(airflow, "dags", "reserialize", cwd=tmp_path)
    listed = told(run(airflow, "dags", "list", "--output", "json", cwd=tmp_path))
    assert {row["dag_id"] for row in listed} == {"theirs", *(dag.stem for dag in (REPOSITORY / "dags").glob("*.py"))}
    assert told(run(airflow, "dags", "list-import-errors", "--output", "json", cwd=tmp_path)) == []
    monkeypatch.setitem(BARE, "AIRFLOW__CORE__LOAD_EXAMPLES", "True")  # as it is by default
    bundles = run(python, "-c", EXAMPLES, cwd=tmp_path)
    assert "mirrorbook" in bundles.rpartition("bundles:")[2].split()
    assert "Could not load provider module" not in bundles
    monkeypatch.setitem(BARE, "AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    providers = told(run(airflow, "providers", "list", "--output", "json", cwd=tmp_path))
    assert [row["version"] for row in providers if row["package_name"] == "mirrorbook"] == [wheel.name.split("-")[1]]
    plugins = run(airflow, "plugins", "--output", "json", cwd=tmp_path)
    assert "Disaster recovery" in plugins
    assert not list(tmp_path.glob("env/lib/python*/site-packages/pyspark")), "nothing but Airflow"


def told(said: str) -> list[dict[str, str]]:
    """The list in what a command of Airflow's said, which may say other things before."""
    found: list[dict[str, str]] = json.loads(next(line for line in said.splitlines() if line[:2] in ("[{", "[]")))
    return found


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with a configuration of a cluster where nothing listens."""
    (tmp_path / "mirrorbook.yaml").write_text('clusters: {east: {bootstrap.servers: "127.0.0.1:1"}}', encoding="utf-8")
    return tmp_path


def test_the_command_tells_its_version_and_its_commands(bare: Path, wheel: Path, tmp_path: Path) -> None:
    assert run(bare / "mirrorbook", "--version", cwd=tmp_path).strip() == f"mirrorbook {wheel.name.split('-')[1]}"
    assert "failover" in run(bare / "mirrorbook", "--help", cwd=tmp_path)
    assert "--topics" in run(bare / "mirrorbook", "mirror", "create", "--help", cwd=tmp_path)
    assert "urn:mirrorbook:json:sandbox-status" in run(bare / "mirrorbook", "json-schema", cwd=tmp_path)


def test_without_a_configuration_it_says_where_it_looked(bare: Path, tmp_path: Path) -> None:
    said = run(bare / "mirrorbook", "cluster", "check", "east", cwd=tmp_path, code=2)

    assert "error: no configuration at mirrorbook.yaml" in said


def test_a_cluster_that_does_not_answer_is_named(bare: Path, desk: Path) -> None:
    said = run(bare / "mirrorbook", "cluster", "check", "east", cwd=desk, code=1)

    assert "east" in said
    assert "127.0.0.1:1" in said


@pytest.mark.parametrize(
    ("command", "extra"),
    [("demo", "sandbox"), ("sandbox status", "sandbox"), ("replicate m1", "spark")],
)
def test_what_needs_an_extra_says_which(bare: Path, desk: Path, command: str, extra: str) -> None:
    assert f"install your Mirrorbook wheel with [{extra}]" in run(
        bare / "mirrorbook", *command.split(), cwd=desk, code=2
    )
