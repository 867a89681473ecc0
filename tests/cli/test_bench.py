"""A campaign for real: servers of the package's model, with the drafters that it brings."""

import json
import subprocess
import sys
from pathlib import Path


def test_drafters_side_by_side(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "bench", "--drafter", "none,mtp:2,auto:3", "--concurrency", "2"]
    command += ["--prompts", "1", "--max-tokens", "12", "--weights", "bf16", "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["settings"]["model"] == "embedded"
    points = [cell["point"] for cell in summary["cells"]]
    assert [(point["drafter"], point["draft_tokens"]) for point in points] == [("none", 0), ("mtp", 2), ("dflash2", 3)]
    assert [cell["reason"] for cell in summary["cells"]] == [None, None, None]
    assert [cell["equal_share"] for cell in summary["cells"]] == [1.0, 1.0, 1.0]
    for drafting, k in zip(summary["drafting"], (2, 3), strict=True):
        shares = drafting["workloads"]["all"]["joint"]
        assert len(shares) == k and shares == sorted(shares, reverse=True) and 0 < shares[0] <= 1
    assert (tmp_path / "run" / "report.html").exists()
