"""Write the digests of the golden runs, or compare them with the stored ones.

Digests that are written replace those of other environments, which cannot be computed here.
"""

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

STORED = Path(__file__).with_name("digests.json")
# One thread, and arithmetic that does not depend on the model of the CPU.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "CUDA_VISIBLE_DEVICES": "",
}
NOTHING_COMPARED = 3  # exit status, where no digests are stored for this environment
Stored = dict[str, dict[str, dict[str, str]]]  # digests by key, by case, by environment


def main() -> int:
    """Run the command; the exit status of `--check` is 1 where a digest differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("words", nargs="*", help="only the cases whose names contain one of these")
    parser.add_argument("--check", action="store_true", help="compare with the stored digests, write nothing")
    parser.add_argument(
        "--part", nargs=2, type=int, default=(0, 1), metavar=("I", "N"), help="every N-th case from I on"
    )
    parser.add_argument("--times", action="store_true", help="print the seconds of each case")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in SETTINGS.items()):
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]], {**os.environ, **SETTINGS})
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")

    import torch

    from .cases import CASES
    from .digests import differences, environment

    torch.set_num_threads(1)
    stored: Stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    now: Stored = defaultdict(dict)
    skipped, equal, compared = Counter(), True, False
    first, stride = arguments.part
    for index, (name, case) in enumerate(CASES.items()):
        where = environment(case.libraries)
        known = stored.get(where, {}).get(name, {})
        named = not arguments.words or any(word in name for word in arguments.words)
        if not named or index % stride != first:
            now[where] |= {name: known} if known else {}
        elif arguments.check and where not in stored:
            skipped[where] += 1
        else:
            start, compared = time.perf_counter(), True
            now[where][name] = case.run() if not arguments.check else run_anyway(case.run)
            if arguments.times:
                print(f"{name}: {time.perf_counter() - start:.2f} s")
            for line in differences(now[where][name], known):
                equal = False
                print(f"{name}: {line}", flush=True)
    for where, number in skipped.items():
        print(f"{number} cases skipped: no digests are stored for {where}, only for {'; '.join(stored)}")
    if not arguments.check:
        write(now)
        return 0
    return NOTHING_COMPARED if not compared else 0 if equal else 1


def run_anyway(run: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return the digests of a case, or its error."""
    try:
        return run()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def write(digests: Stored) -> None:
    """Write the stored digests, a line for each case."""
    environments = (
        f"{json.dumps(where)}: {{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(of)}" for name, of in cases.items())
        for where, cases in digests.items()
    )
    STORED.write_text("{" + "\n},\n".join(environments) + "\n}}\n")


if __name__ == "__main__":
    sys.exit(main())
