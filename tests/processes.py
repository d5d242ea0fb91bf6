"""Trainings in processes of their own."""

import subprocess
import sys
from pathlib import Path


def run(script: Path, timeout: int = 300) -> str:
    """Run a script, which must not fail; return what it printed."""
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=timeout)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout
