"""Coverage-guided fuzzing: `python -m tests.fuzz TARGET SECONDS FOLDER`.

FOLDER keeps the inputs that reached something new, for the next time, and what crashed (crash-…, timeout-…, oom-…).
Copy that into tests/fuzz/crashers/TARGET/, and the unit tests replay it from then on.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["mirror_core.wire", "mirror_core.kafka.connection"]):
    from tests.fuzz.seeds import SEEDS
    from tests.fuzz.targets import TARGETS

MEMORY = 3 << 30


def main() -> None:
    if len(sys.argv) != 4 or sys.argv[1] not in TARGETS:
        sys.exit(f"{__doc__}\nTargets: {', '.join(TARGETS)}")
    name, seconds, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]()):
        (corpus / f"seed-{number}").write_bytes(seed)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    options = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=1024", f"-artifact_prefix={folder}/{name}-"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
