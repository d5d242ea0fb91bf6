"""The machine of a result, and writing a result to a file."""

import argparse
import json
import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

_LOAD_AT_START = os.getloadavg()[0]
_GPU = torch.cuda.is_available()


def wait_for_device() -> None:
    """Wait for the pending work of a GPU."""
    if _GPU:
        torch.cuda.synchronize()


def refuse(problem: str) -> None:
    """Exit, as the sides did not do the same work; on a GPU, whose kernels add in any order, only print this."""
    if not _GPU:
        raise SystemExit(problem)
    print(f"on this GPU not bit for bit: {problem}", flush=True)


def device() -> str:
    """Return the name of the GPU, or else that of the processor and the number of its cores."""
    if _GPU:
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    return f"{processor}, {os.cpu_count()} cores"


def parser_of(description: str) -> argparse.ArgumentParser:
    """Return a parser with the option that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    return parser


def publish(result: dict[str, Any], path: Path | None) -> None:
    """Print a result with its command, machine and versions; write it to a file if requested."""
    words = sys.argv[1:]
    if path is not None:
        words = [word for word in words if word not in ("--json", str(path), f"--json={path}")]
    about = {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words]),
        "device": device(),
        "threads": torch.get_num_threads(),
        "load_average": [round(_LOAD_AT_START, 1), round(os.getloadavg()[0], 1)],  # before and after
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "python": platform.python_version(),
    }
    print(json.dumps({**about, **result}))
    if path is not None:
        path.write_text(json.dumps({**about, **result}, indent=1) + "\n")
