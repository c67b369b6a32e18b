"""The brokers' jars: pinned by coordinates and SHA-256, fetched once a user by the Ivy that PySpark ships.

`python -m mirrorbook_tools.sandbox.jars` fetches what is missing. No repository is named: Ivy knows the central one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mirror_core.java import find_java_home, get_cache_dir
from mirror_core.model.errors import BadRequest, MirrorError
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.truststore import STORE_PASSWORD, write_truststore

LOCK: Final = Path(__file__).with_name("jars.lock")
FETCH_TIMEOUT_S: Final = 900.0
IVY_SETTINGS: Final = (
    '<ivysettings><settings defaultResolver="central"/><resolvers>'
    '<ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers></ivysettings>'
)


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock."""

    sha256: str
    org: str
    name: str
    revision: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        return "-".join(filter(None, (self.name, self.revision, self.classifier))) + ".jar"


def locked(lock: Path = LOCK) -> tuple[Jar, ...]:
    lines = lock.read_text(encoding="utf-8").splitlines()
    return tuple(Jar(*line.split()) for line in lines if line and not line.startswith("#"))


def jars_dir(lock: Path = LOCK) -> Path:
    """A folder per content of the lock, so that a class path of `folder/*` never mixes two versions."""
    return get_cache_dir() / "jars" / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]


def ensure_jars(lock: Path = LOCK) -> Path:
    """The folder that holds exactly the locked jars; each is verified, and what is missing or wrong is fetched."""
    folder = jars_dir(lock)
    wanted = [jar for jar in locked(lock) if not _is_good(folder / jar.file_name, jar)]
    if wanted:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _fetch(wanted, folder)
        except OSError as error:
            raise SandboxFailed(f"cannot store the brokers' jars in {folder}: {error.strerror}") from error
    return folder


def _is_good(path: Path, jar: Jar) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == jar.sha256


def _fetch(jars: Sequence[Jar], folder: Path) -> None:
    """Fetch into a folder of our own, verify there, then rename: two checkouts may fetch at the same time."""
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        command = [str(find_java_home() / "bin" / "java")]
        if write_truststore(scratch / "trust.p12"):
            command += [
                f"-Djavax.net.ssl.trustStore={scratch / 'trust.p12'}",
                f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}",
            ]
        (scratch / "settings.xml").write_text(IVY_SETTINGS, encoding="utf-8")
        (scratch / "ivy.xml").write_text(_ivy_module(jars), encoding="utf-8")
        command += ["-jar", str(_ivy_jar()), "-settings", str(scratch / "settings.xml"), "-confs", "default"]
        command += ["-cache", str(scratch / "cache"), "-ivy", str(scratch / "ivy.xml")]
        command += ["-retrieve", f"{scratch}/out/[artifact]-[revision](-[classifier]).[ext]"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise SandboxFailed(
                f"the brokers' jars did not arrive within {FETCH_TIMEOUT_S:.0f} s: check the network, and try again"
            ) from None
        wrong = [jar for jar in jars if not _is_good(scratch / "out" / jar.file_name, jar)]
        for jar in jars:
            if jar not in wrong:
                os.replace(scratch / "out" / jar.file_name, folder / jar.file_name)
        if wrong:
            raise SandboxFailed(_complaint(wrong, scratch / "out", done.stdout + done.stderr))


def _complaint(wrong: Sequence[Jar], out: Path, ivy_output: str) -> str:
    lines = [f"{len(wrong)} of the brokers' jars could not be fetched as locked:"]
    for jar in wrong[:5]:
        found = out / jar.file_name
        state = f"has SHA-256 {hashlib.sha256(found.read_bytes()).hexdigest()}" if found.is_file() else "did not arrive"
        lines.append(f"  {jar.org}:{jar.name}:{jar.revision} {state}, the lock says {jar.sha256}")
    said = [line.strip() for line in ivy_output.splitlines() if "ERROR" in line or "Exception" in line]
    lines += [f"  Ivy: {line}" for line in said[:3]]
    lines.append("Check the network and its proxy's CA (SSL_CERT_FILE), and try again; what was good is kept.")
    return "\n".join(lines)


def _ivy_module(jars: Sequence[Jar]) -> str:
    rows = "".join(
        f'<dependency org="{jar.org}" name="{jar.name}" rev="{jar.revision}" transitive="false" '
        f'conf="default->default">{_artifact(jar)}</dependency>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="local" module="sandbox"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{rows}</dependencies></ivy-module>'
    )


def _artifact(jar: Jar) -> str:
    """What to take of a module, if it is not its main jar."""
    if not jar.classifier:
        return ""
    return f'<artifact name="{jar.name}" type="jar" ext="jar" m:classifier="{jar.classifier}"/>'


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        for jar in (Path(spec.origin).parent / "jars").glob("ivy-*.jar"):
            return jar
    raise BadRequest(
        "the package pyspark is needed to fetch the brokers' jars: install your Mirrorbook wheel with [sandbox]"
    )


def main() -> int:
    try:
        folder = ensure_jars()
    except MirrorError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"jars: {len(locked())} verified in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
