"""The file that brings all DAGs into a team's own folder, as the page about managed Airflow shows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "operate" / "managed-airflow.md"
LOADED_S = 300.0
LOOK = """
import json, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1], bundle_path=Path(sys.argv[1]))
print(json.dumps([bag.import_errors, {name: dag.relative_fileloc for name, dag in bag.dags.items()}]))
"""


def test_the_file_on_the_page_brings_all_dags(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "mirrorbook.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOOK, str(folder)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow")},
        capture_output=True,
        text=True,
        timeout=LOADED_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors, found = json.loads(done.stdout.splitlines()[-1])
    assert errors == {}
    assert found == {file.stem: "mirrorbook.py" for file in (ROOT / "dags").glob("*.py")}
