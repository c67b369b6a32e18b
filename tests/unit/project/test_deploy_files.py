"""What is given to init systems, Kubernetes and Docker, against the commands and extras that it names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from mirror_core.decide.task_assignment import parse_bytes_per_s
from mirror_core.kafka.config import Principal, load_config
from mirror_core.supervisor.supervisor import STOP_TIMEOUT_S
from tests.support.deploy_files import DOCKERFILE, ROOT, parsed

SYSTEMD: Final = ROOT / "deploy" / "systemd"
UNIT: Final = SYSTEMD / "mirrorbook@.service"
READINESS: Final = SYSTEMD / "mirrorbook-readiness.service"
KUBERNETES: Final = ROOT / "deploy" / "kubernetes"
OPTIONS: Final = re.findall(r"OPTIONS=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)[0]
"""Of the unit's data plane, as its head shows them."""


# -- systemd ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("path", [UNIT, READINESS], ids=lambda path: path.stem)
def test_systemd_finds_nothing_wrong_with_the_unit(path: Path, tmp_path: Path) -> None:
    """Exit codes don't say: a key that is not known is ignored, with a word."""
    unit = tmp_path / path.name
    unit.write_text(path.read_text(encoding="utf-8").replace("/opt/mirrorbook/bin/mirrorbook", "/bin/true"))

    def said() -> str:
        verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
        done = subprocess.run(verify, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert said() == ""
    unit.write_text(unit.read_text(encoding="utf-8").replace("UMask", "UMusk"), encoding="utf-8")
    assert "Unknown key" in said(), "it looks at keys at all"


def unit_of(path: Path) -> RawConfigParser:
    unit = RawConfigParser(strict=False, delimiters="=", comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    return unit


def credentials(path: Path) -> list[str]:
    return re.findall(r"^LoadCredential=([^:]+):/etc/mirrorbook/\1$", path.read_text("utf-8"), re.MULTILINE)


def test_the_unit_stops_the_supervisor_alone_and_leaves_it_time() -> None:
    unit = unit_of(UNIT)
    service = unit["Service"]
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > STOP_TIMEOUT_S
    assert service["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert "MemoryDenyWriteExecute" not in service, "Java compiles while it runs"
    program, *words = service["ExecStart"].replace("%i", "orders").replace("$OPTIONS", OPTIONS).split()
    assert program == "/opt/mirrorbook/bin/mirrorbook"
    assert parsed(words) == {
        "name": "orders",
        "config": Path("%d/mirrorbook.yaml"),
        "home": None,
        "options": OPTIONS.split(),
        "as_json": False,
    }
    told = parsed(["replicate", "orders", *OPTIONS.split()])
    assert parse_bytes_per_s(told["prove_at"]), "what was copied is compared beside the copying"
    assert f"OPTIONS={OPTIONS}'" in (ROOT / "docs" / "operate" / "install.md").read_text(encoding="utf-8")
    assert credentials(UNIT) == ["mirrorbook.yaml", "control.properties", "data.properties"]


def test_the_unit_that_looks_is_given_less_than_the_one_that_copies() -> None:
    service = unit_of(READINESS)["Service"]
    program, name, *words = service["ExecStart"].split()
    assert (program, name) == ("/opt/mirrorbook/bin/mirrorbook", "readiness")
    assert parsed([name, *words])["metrics"] == "9466"
    assert credentials(READINESS) == ["mirrorbook.yaml", "control.properties"]
    copying = unit_of(UNIT)["Service"]
    hardened = {key for key in copying if key.startswith(("Protect", "Private", "Restrict", "NoNew", "Cap"))}
    assert {key: service[key] for key in hardened} == {key: copying[key] for key in hardened}


def test_the_drop_in_of_a_broker_asks_before_it_starts_and_refuses_when_nobody_knows() -> None:
    program, name, *words = unit_of(SYSTEMD / "kafka-guard.conf")["Service"]["ExecStartPre"].split()
    assert (program, name) == ("/opt/mirrorbook/bin/mirrorbook", "guard")
    found = parsed([name, *words])
    assert (found["name"], found["cluster"], found["on_silence"]) == ("NAME", "east", "refuse")


# -- Kubernetes ------------------------------------------------------------------------------------------------------


def document(name: str) -> Any:
    return yaml.safe_load((KUBERNETES / name).read_text(encoding="utf-8"))


def pods() -> list[dict[str, Any]]:
    return [
        document("data-plane.yaml")["spec"]["template"]["spec"],
        document("readiness.yaml")["spec"]["template"]["spec"],
    ]


def test_containers_are_given_commands_that_there_are() -> None:
    copying, looking = (pod["containers"][0]["args"] for pod in pods())
    assert copying[0] == looking[0] == "mirrorbook"
    found = parsed(copying[1:])
    assert len(found["names"]) > 1, "one mirror alone ends where a cluster does not answer, or a run holds it"
    assert found["metrics"].endswith(f":{pods()[0]['containers'][0]['ports'][0]['containerPort']}")
    mounts = {mount["mountPath"] for mount in pods()[0]["containers"][0]["volumeMounts"]}
    assert {found["receipts"], str(found["config"].parent)} < mounts
    assert parse_bytes_per_s(found["prove_at"]), "what was copied is compared beside the copying"
    port = pods()[1]["containers"][0]["ports"][0]["containerPort"]
    assert parsed(looking[1:])["metrics"] == f"0.0.0.0:{port}"
    annotations = document("readiness.yaml")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)
    assert pods()[0]["terminationGracePeriodSeconds"] > STOP_TIMEOUT_S


@pytest.mark.parametrize("pod", pods(), ids=["data-plane", "readiness"])
def test_pods_run_as_nobody_in_particular_and_write_nowhere_but_in_volumes(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert "memory" in container["resources"]["limits"]


def test_each_principal_has_a_secret_of_its_own(tmp_path: Path) -> None:
    text = document("config.yaml")["data"]["mirrorbook.yaml"]
    (tmp_path / "mirrorbook.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "data.properties").write_text("east=of-data\nwest=of-data\n", encoding="utf-8")
    copying = load_config(tmp_path / "mirrorbook.yaml", only_principal=Principal.DATA).cluster("west")
    assert copying.data["sasl.password"] == "of-data"
    (tmp_path / "control.properties").write_text("east=of-control\nwest=of-control\n", encoding="utf-8")
    assert load_config(tmp_path / "mirrorbook.yaml").cluster("east").control["sasl.password"] == "of-control"
    (tmp_path / "data.properties").unlink()
    looking = load_config(tmp_path / "mirrorbook.yaml", only_principal=Principal.CONTROL).cluster("east")
    assert looking.control["sasl.password"] == "of-control"
    control = [{"configMap": {"name": "mirrorbook"}}, {"secret": {"name": "mirrorbook-control"}}]
    both = [*control, {"secret": {"name": "mirrorbook-data"}}]
    for pod, wanted in zip(pods(), (both, control), strict=True):
        sources = next(volume for volume in pod["volumes"] if volume["name"] == "config")["projected"]["sources"]
        assert sources == wanted


def test_what_kustomize_takes_is_there() -> None:
    kustomization = document("kustomization.yaml")
    listed = {*kustomization["resources"], "kustomization.yaml"}
    assert listed == {path.name for path in KUBERNETES.iterdir()}
    assert {pod["containers"][0]["image"] for pod in pods()} == {kustomization["images"][0]["name"]}


# -- Docker ----------------------------------------------------------------------------------------------------------


def test_the_images_take_what_is_there_and_leave_tests_out() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    installed = re.findall(r'\*\.whl\)\[([a-z,]+)\]"', DOCKERFILE)
    assert installed == ["spark", "airflow,spark"]
    assert {extra for extras in installed for extra in extras.split(",")} < set(
        pyproject["project"]["optional-dependencies"]
    )
    copied = {word for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    assert "tests" not in copied
    assert not copied & set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    data_files = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "data-files"
    ]
    assert {pattern.split("/")[0] for patterns in data_files.values() for pattern in patterns} <= copied


def test_airflow_in_its_image_takes_dags_from_the_package_and_from_its_own_folder() -> None:
    bundles = json.loads(re.findall(r"DAG_BUNDLE_CONFIG_LIST='(.*)'", DOCKERFILE)[0])
    assert [bundle["name"] for bundle in bundles] == ["dags-folder", "mirrorbook"]


# -- what people are told to install ---------------------------------------------------------------------------------

FROM_AN_INDEX: Final = re.compile(
    r"\b(?:pipx?|uvx?|uv tool|uv pip)\b[^\n|]*?[\s'\"]mirrorbook(?:\[[^\]]*\])?(?=['\"`\s=<>~!,]|$)"
)
"""The name alone: whoever registers it on the public index would run code beside control passwords."""


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'mirrorbook[spark]'",
        "pip install -U mirrorbook",
        "uv pip install mirrorbook==0.1.0",
        "pipx install mirrorbook",
    ],
)
def test_a_line_that_installs_by_name_is_known(line: str) -> None:
    assert FROM_AN_INDEX.search(line)


def test_nobody_is_told_to_install_by_name_from_the_public_index() -> None:
    places = [
        *ROOT.glob("*.md"),
        *(
            p
            for room in ("docs", "deploy", "docker", "mirror_core", "mirrorbook_tools", "plugins", "dags", "demo")
            for p in (ROOT / room).rglob("*")
        ),
    ]
    kinds = {".md", ".py", ".sh", ".yaml", ".yml", ".service", ".conf", ".j2", ""}
    texts = {path: path.read_text(encoding="utf-8") for path in places if path.is_file() and path.suffix in kinds}
    assert len(texts) > 100
    found = [
        f"{path.relative_to(ROOT)}: {hit[0]}" for path, text in texts.items() if (hit := FROM_AN_INDEX.search(text))
    ]
    assert found == []
