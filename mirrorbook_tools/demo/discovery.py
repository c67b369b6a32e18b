"""Which cluster is primary: the little service discovery that the demo's applications follow.

One file with one word. As a program it is the hook that the mirror's step `switch` calls. A real one would be DNS, a
load balancer or a configuration service; what it has in common with them is that applications learn of a switch after
it has happened, each in its own time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class Discovery:
    def __init__(self, path: Path) -> None:
        self.path = path

    def primary(self) -> str:
        """The name of the cluster to work on now."""
        return self.path.read_text(encoding="ascii").strip()

    def switch(self, cluster: str) -> None:
        """Tell the applications to move; readers see the old or the new name, never a half."""
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text(cluster + "\n", encoding="ascii")
        os.replace(fresh, self.path)


if __name__ == "__main__":
    Discovery(Path(sys.argv[1])).switch(os.environ["MIRRORBOOK_ACTIVE"])
