"""Run each script beside this one in a process of its own, watch what becomes of its events, and write the table.

python examples/neighbours/run.py               # all; the table is on docs/reference/callbacks.md
python examples/neighbours/run.py skorch darts  # some: the rows of the others stay

A script fails if it ends in an error, if no event changes a weight, if a change is lost (at the next event, or at the
end, a weight is nearer to its old value than to the new one), or if no optimizer trains a changed weight (it still has
the new value). Training that moves a weight farther than an event did leaves open which of them it began from.
"""

import ast
import os
import runpy
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "reference" / "callbacks.md"
HEAD = "| script | library | version | own lines | events | matrices | verified | seconds |"


def own_lines(text: str) -> int:
    """Return the lines of code without imports, docstring, comments, and what stands in for the user's own.

    A stand-in begins with a comment `# stand-in for …`, and ends at a blank line with no indented line behind it.
    """
    body = ast.parse(text).body
    left_out = [body[0], *(node for node in body if isinstance(node, ast.Import | ast.ImportFrom))]
    skip = {line for node in left_out for line in range(node.lineno, node.end_lineno + 1)}
    stand_in, after_blank, count = False, False, 0
    for number, line in enumerate(text.splitlines(), 1):
        ended = after_blank and line == line.lstrip() and line != ""
        stand_in, after_blank = line.startswith("# stand-in for ") or (stand_in and not ended), line == ""
        count += bool(line.strip()) and not (stand_in or number in skip or line.lstrip().startswith("#"))
    return count


class Watch:
    """What the events of a script write into trained parameters, and what becomes of it."""

    def __init__(self) -> None:
        from lightning_fire.methods import Change

        self.events = 0
        self.written = {}  # name, old and new value, by parameter
        self.matrices = set()  # parameter of each, and its rows there: names change in Keras
        self.found, self.seen = [], False  # faults; whether some change is larger than what training has added
        make = Change.make

        def watched(change):
            names = {view.parameter: view.name for view in change.weights}
            self.judge([tensor for tensor in names if tensor in self.written])
            old = {tensor: tensor.detach().clone() for tensor in names}
            report = make(change)
            self.events += 1
            self.matrices |= {(view.parameter, view.rows) for view in change.weights}
            self.written |= {t: (name, old[t], t.detach().clone()) for t, name in names.items()}
            return report

        Change.make = watched

    def judge(self, weights: list) -> None:
        """Note a sentence for each weight whose last change went wrong."""
        for now in weights:
            name, old, new = self.written[now]
            from_old, from_new = (now - old).norm(), (now - new).norm()
            open_ = (new - old).norm() <= min(from_old, from_new)
            self.seen |= not open_
            if now.equal(new):
                self.found.append(f"{name} was changed, and has not been trained since")
            elif from_new >= from_old and not open_:
                self.found.append(f"the change of {name} was lost")

    def faults(self) -> list[str]:
        """Return a sentence for each weight that went wrong."""
        if not self.written:
            return ["no event changed a weight"]
        self.judge(list(self.written))
        return self.found if self.seen else ["each weight was trained so far that no change can be seen"]


def run_here(script: str) -> None:
    """Run a script in this process; end with an error if an event went wrong, or else with a line for the table."""
    watch = Watch()
    model = runpy.run_path(str(HERE / f"{script}.py"), run_name="__main__")["model"]
    if faults := watch.faults():
        raise SystemExit("\n".join(faults))
    from torch import nn

    from lightning_fire import Weights

    acted_on = model if isinstance(model, list) else [model]
    parameters = {parameter for each in acted_on for parameter in each.parameters()}
    of = 0
    for each in acted_on:
        recurrent = any(isinstance(part, nn.RNNBase) for part in each.modules())
        every = Weights(preset="cnn", layers={nn.RNNBase: "gates"} if recurrent else None)
        of += int(every.select(each).counted.split()[2])
    print(f"\nROW {watch.events},{sum(parameter in parameters for parameter, _ in watch.matrices)} of {of}")


def gates_in(model: Any) -> dict[Any, Any]:
    """Return the argument `layers` of `Weights` that takes the gates of the recurrent layers in a model."""
    from torch import nn

    kinds = [nn.RNNBase, nn.RNNCellBase]
    found = [kind for kind in kinds if any(isinstance(module, kind) for module in model.modules())]
    return dict.fromkeys(found, "gates")


def row_of(script: str) -> dict[str, str]:
    """Run a script in a process of its own; return its row."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "--here", script]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "WANDB_MODE": "disabled"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    text = (HERE / f"{script}.py").read_text()
    library = ast.get_docstring(ast.parse(text)).split(":")[0]  # its name in the package index comes first
    row = {"script": script, "library": library, "version": version(library), "own lines": str(own_lines(text))}
    verified = done.returncode == 0
    found = done.stdout.rsplit("\nROW ", 1)[-1].strip().split(",") if verified else ["", ""]
    row |= dict(zip(("events", "matrices"), found, strict=True)) | {"verified": "yes" if verified else "no"}
    row["seconds"] = f"{time.perf_counter() - start:.0f}"
    print(" ".join(f"{name} {value}," for name, value in row.items()).rstrip(","), flush=True)
    if not verified:
        print((done.stdout + done.stderr)[-3000:], flush=True)
    return row


def write(rows: list[dict[str, str]], scripts: list[str]) -> None:
    """Put rows into the table on the page; those of other scripts stay, if they are still there."""
    before, _, after = PAGE.read_text().partition(f"{HEAD}\n")
    rule, *lines = after.partition("\n\n")[0].splitlines()
    rest = after[len("\n".join([rule, *lines])) :]
    table = {line.split("|")[1].strip(): line for line in lines}
    table |= {row["script"]: f"| {' | '.join(row.values())} |" for row in rows}
    kept = [table[script] for script in scripts if script in table]
    PAGE.write_text(before + "\n".join([HEAD, rule, *kept]) + rest)


def main() -> None:
    """Run the scripts that are named, or all."""
    all_scripts = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "run")
    rows = []
    for script in sys.argv[1:] or all_scripts:
        rows.append(row_of(script))
        write(rows[-1:], all_scripts)
    if failed := [row["script"] for row in rows if row["verified"] == "no"]:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        run_here(sys.argv[2])
    else:
        main()
