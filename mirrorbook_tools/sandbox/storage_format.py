"""What a broker needs before its first start: properties, and a formatted data folder with the users in it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mirrorbook_tools.sandbox.broker import Broker, java_command
from mirrorbook_tools.sandbox.credentials import ADMIN, USERS
from mirrorbook_tools.sandbox.errors import SandboxFailed
from mirrorbook_tools.sandbox.process import end, running
from mirrorbook_tools.sandbox.properties import broker_properties, to_text
from mirrorbook_tools.sandbox.state import SandboxState, write_atomically

FORMATTER: Final = "kafka.tools.StorageTool"
ARGUMENTS_FILE: Final = "format.args"
FORMAT_TIMEOUT_S: Final = 120.0


def prepare(
    brokers: Sequence[Broker], state: SandboxState, passwords: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """For brokers that are not running: write server.properties, and format what no formatting has finished."""
    for broker in brokers:
        broker.folder.mkdir(parents=True, exist_ok=True)
        cluster = state.clusters[broker.cluster]
        properties = broker_properties(cluster, broker.node, broker.data_dir, passwords[ADMIN], state.extra)
        write_atomically(broker.properties_path, to_text(properties))
    raw = [broker for broker in brokers if not broker.formatted_path.exists()]
    under_way: list[tuple[Broker, subprocess.Popen[str]]] = []
    try:
        for broker in raw:  # at the same time: most of it is the start of a JVM
            process = _start_format(broker, state.clusters[broker.cluster].cluster_id, passwords)
            under_way.append((broker, process))
        for broker, process in under_way:
            output, _ = process.communicate(timeout=FORMAT_TIMEOUT_S)
            if process.returncode != 0:
                raise SandboxFailed(f"{broker.label} could not be formatted:\n{output[-2000:]}")
            broker.formatted_path.touch()
            say(f"{broker.label}: formatted")
    except subprocess.TimeoutExpired:
        raise SandboxFailed(f"formatting has not ended within {FORMAT_TIMEOUT_S:.0f} s") from None
    finally:
        for _, process in under_way:
            with process:  # ends here in any case, so that it can't meet the next `up`
                process.kill()
        for broker in raw:
            _arguments_path(broker).unlink(missing_ok=True)


def stop_formatters(folders: Iterable[Path]) -> None:
    """End what an `up` that was killed may have left at work in these nodes' folders."""
    arguments = [f"@{folder / ARGUMENTS_FILE}" for folder in folders]
    end(list(running(FORMATTER, arguments)), signal.SIGKILL, FORMAT_TIMEOUT_S)


def _start_format(broker: Broker, cluster_id: str, passwords: Mapping[str, str]) -> subprocess.Popen[str]:
    stop_formatters([broker.folder])
    if broker.data_dir.exists():  # half formatted; no broker has run on it
        shutil.rmtree(broker.data_dir)
    arguments = ["format", "--cluster-id", cluster_id, "--config", str(broker.properties_path)]
    for user in USERS:
        arguments += ["--add-scram", f"SCRAM-SHA-512=[name={user},password={passwords[user]}]"]
    # StorageTool reads @FILE as one argument a line: passwords stay out of the process list.
    write_atomically(_arguments_path(broker), "\n".join(arguments) + "\n")
    command = java_command(broker.jars, "128m", FORMATTER, f"@{_arguments_path(broker)}")
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _arguments_path(broker: Broker) -> Path:
    return broker.folder / ARGUMENTS_FILE
