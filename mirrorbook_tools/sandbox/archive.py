"""The classes that a broker loads, archived for the JVM (class data sharing): with it a broker starts in half the time.

`python -m mirrorbook_tools.sandbox.archive` makes it once for a user, from brokers that it starts for that. Without one
brokers start all the same, and so they do if the JVM finds that it does not fit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from mirror_core.model.errors import MirrorError
from mirrorbook_tools.sandbox.broker import JVM_OPTIONS, archive_of, java_command
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.jars import ensure_jars
from mirrorbook_tools.sandbox.sandbox import Sandbox

DUMP_TIMEOUT_S: Final = 300.0


def make(jars: Path) -> Path:
    """The archive for these jars; nothing to do if there is one. SandboxFailed: it could not be made."""
    archive = archive_of(jars)
    if archive.exists():
        return archive
    with tempfile.TemporaryDirectory(prefix=".archive-", dir=jars.parent) as scratch_name:
        scratch = Path(scratch_name)
        command = java_command(jars, "512m")
        command[1:1] = ["-Xshare:dump", f"-XX:SharedClassListFile={_loaded(scratch)}"]
        command[1:1] = [f"-XX:SharedArchiveFile={scratch / archive.name}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise SandboxFailed(f"the archive of brokers' classes was not made in {DUMP_TIMEOUT_S:.0f} s") from None
        if done.returncode != 0:
            raise SandboxFailed(f"the archive of brokers' classes was not made:\n{(done.stdout + done.stderr)[-2000:]}")
        os.replace(scratch / archive.name, archive)
    return archive


def _loaded(scratch: Path) -> Path:
    """What a broker that has been signed in to has loaded."""
    before = os.environ.get(JVM_OPTIONS)
    sandbox = Sandbox(scratch / "sandbox")
    os.environ[JVM_OPTIONS] = f"-XX:DumpLoadedClassList={scratch}/%p.classes"
    try:
        sandbox.up(nodes=1)
        pid = sandbox.cluster("east").pid()
    finally:
        sandbox.down(delete=True)
        if before is None:
            del os.environ[JVM_OPTIONS]
        else:
            os.environ[JVM_OPTIONS] = before
    return scratch / f"pid{pid}.classes"  # the JVM puts "pid" before the number


def main() -> int:
    try:
        print(f"archive of brokers' classes: {make(ensure_jars())}")
    except MirrorError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"the archive of brokers' classes was not made: {error}", file=sys.stderr)
        return SandboxFailed.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
