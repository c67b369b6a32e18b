"""The rules of imports in pyproject.toml: each line of each is seen to fail once broken; and how long files may be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

ROOT: Final = Path(__file__).parents[3]
CORE: Final = ROOT / "mirror_core"
LONGEST_FILE: Final = 600
CONFIGURATION: Final = read_configuration(str(ROOT / "pyproject.toml"))
CONTRACTS: Final[list[dict[str, Any]]] = CONFIGURATION["contracts_options"]
KINDS: Final = {"layers": LayersContract, "forbidden": ForbiddenContract}


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """Who imports whom, as import-linter sees it."""
    packages = CONFIGURATION["session_options"]["root_packages"]
    return grimp.build_graph(*packages, include_external_packages=True, cache_dir=None)


def kept(contract: dict[str, Any], graph: grimp.ImportGraph) -> bool:
    options = {key: value for key, value in contract.items() if key not in ("id", "name", "type")}
    checked = KINDS[contract["type"]](contract["name"], CONFIGURATION["session_options"], options)
    return checked.check(graph, verbose=False).kept


def offences(contract: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Imports, as few as name each line of the contract at least once, that it must not let pass."""
    if contract["type"] == "forbidden":
        sources, forbidden = contract["source_modules"], contract["forbidden_modules"]
        yield from ((source, forbidden[0]) for source in sources)
        yield from ((sources[0], module) for module in forbidden[1:])
        return
    (container,) = contract["containers"]
    layers = [[f"{container}.{room.strip()}" for room in layer.split("|")] for layer in contract["layers"]]
    for siblings in layers:
        yield from ((one, other) for one in siblings for other in siblings if one != other)
    for upper, lower in pairwise(layers):
        yield from ((below, above) for above in upper for below in lower)
    yield layers[-1][0], layers[0][0]


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["name"])
def test_a_contract_is_kept_and_broken_by_every_import_that_it_forbids(
    contract: dict[str, Any], imports: grimp.ImportGraph
) -> None:
    assert kept(contract, deepcopy(imports))
    for importer, imported in offences(contract):
        graph = deepcopy(imports)
        if imported not in graph.modules:  # a library that nobody here imports
            graph.add_module(imported, is_squashed=True)
        graph.add_import(importer=importer, imported=imported)
        assert not kept(contract, graph), f"{importer} may import {imported}"


def test_an_import_in_a_file_breaks_the_build(tmp_path: Path) -> None:
    for package in ("mirror_core", "mirrorbook_tools", "plugins", "dags", "demo", "benchmarks"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "results*"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / "mirror_core" / "wire" / "fields.py"
    file.write_text(file.read_text(encoding="utf-8") + "\nimport mirror_core.kafka.client\n", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{tmp_path / 'plugins'}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "mirror_core.wire.fields -> mirror_core.kafka.client" in ended.stdout


def test_no_two_modules_import_each_other_in_a_circle(imports: grimp.ImportGraph) -> None:
    ours = {module for module in imports.modules if not imports.is_module_squashed(module)}
    assert len(ours) > 150
    # CycleError names those in the circle.
    TopologicalSorter({module: imports.find_modules_directly_imported_by(module) & ours for module in ours}).prepare()


def lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def test_no_file_is_too_long_to_be_read_at_once() -> None:
    sizes = {
        str(file.relative_to(ROOT)): lines(file)
        for folder in ("mirror_core", "mirrorbook_tools", "plugins", "dags", "demo")
        for file in (ROOT / folder).rglob("*.py")
    }
    assert len(sizes) > 150
    assert not {name: size for name, size in sizes.items() if size > LONGEST_FILE}


def test_no_room_holds_more_than_a_sixth_of_the_core() -> None:
    rooms = {room.name: sum(map(lines, room.rglob("*.py"))) for room in CORE.iterdir() if room.is_dir()}
    whole = sum(map(lines, CORE.rglob("*.py")))
    assert {name: size for name, size in rooms.items() if size > whole / 6} == {}, f"of {whole} lines"
