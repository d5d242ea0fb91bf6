"""Write the table of the zoo."""

import argparse
import csv
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

from .architectures import architectures
from .outcome import COLUMNS, outcome

STORED = Path(__file__).with_name("architectures.csv")


def main() -> int:
    """Run the command; the exit status is 1 where a split is unconfirmed, or a weight has no reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument(
        "words",
        nargs="*",
        help="only architectures whose library or name contains one of these; the others stay in the table",
    )
    parser.add_argument("--reasons", action="store_true", help="print each weight that is not taken, with its reason")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, start = [], time.perf_counter()
    for library, name, build in architectures():
        if arguments.words and not any(word in f"{library} {name}" for word in arguments.words):
            continue
        try:
            found = outcome(library, name, build)
        except Exception as error:  # of the library: too old, a dependency is missing
            print(f"{library} {name}: not built: {type(error).__name__}: {str(error)[:110]}", file=sys.stderr)
            continue
        rows.append(found)
        if arguments.words or found["unconfirmed"] or found["silent"]:
            print({key: value for key, value in found.items() if key != "names"})
        if arguments.reasons:
            print(*found["names"], sep="\n")
    if rows:
        old = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() and arguments.words else []
        stored = list(csv.DictReader(old))
        table = {(row["library"], row["architecture"]): row for row in [*stored, *rows]}
        with STORED.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(table[key] for key in sorted(table))
    totals: dict[str, Counter[str]] = {}
    for row in rows:
        counted = {key: value for key, value in row.items() if isinstance(value, int)}
        totals.setdefault(row["library"], Counter()).update({"architectures": 1, **counted})
    for library, counts in totals.items():
        print(library, dict(counts))
    print(f"{len(rows)} architectures in {time.perf_counter() - start:.0f} s")
    return int(any(row["unconfirmed"] or row["silent"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
