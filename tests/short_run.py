"""A short real run of this environment's command, as `python tests/short_run.py TOKENS SHARE`, for `.ci/run` and
`tests/versions.sh`: it has to end well, to learn, and to leave what a run leaves.

SHARE: the held-out loss at the end is below this share of that of the beginning.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

WRITTEN: Final = ("report.html", "trace.json", "metrics.jsonl", "config.toml")


def main(tokens: str, share: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        isthmus = Path(sys.executable).parent / "isthmus"
        subprocess.run([isthmus, "train", "--tokens", tokens, "--run-dir", run, "--quiet"], check=True)
        summary = json.loads((run / "summary.json").read_text())
        assert summary["outcome"] == "done", summary["outcome"]
        first, last = summary["eval_loss_initial"], summary["eval_loss_final"]
        assert last < float(share) * first, summary
        assert all((run / name).stat().st_size for name in WRITTEN)
        assert list((run / "snapshots" / "final").glob("*.safetensors"))
        print(f"a short run: {first:.3f} -> {last:.3f} nats per byte")


if __name__ == "__main__":
    main(*sys.argv[1:])
