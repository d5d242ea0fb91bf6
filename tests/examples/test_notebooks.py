"""The notebooks of the site: run from top to bottom, with their own checks at the end."""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_fire.methods import Method

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


def code_of(path):
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_there_are_three_notebooks_that_end_in_a_check_and_show_what_they_did():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert "assert " in "".join(cells[-1]["source"])
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        assert any("image/png" in output.get("data", {}) for output in outputs)
        assert not any(output["output_type"] == "error" for output in outputs)
        said = [
            line
            for output in outputs
            if output.get("name") == "stderr"
            for line in "".join(output["text"]).splitlines()
        ]
        assert all(
            line.startswith(("FIRECallback ", "fire acted ", "fire: this data is the first", "also reset: "))
            for line in said
        ), said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_and_arguments_of_a_notebook_exist(path):
    """What it imports from this package, by which keywords it calls that, and that a method is given to a callback."""
    tree, imported, seen = ast.parse(code_of(path)), {}, 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("lightning_fire"):
            module = importlib.import_module(node.module)
            imported |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in imported:
            keywords = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            inspect.signature(imported[call.func.id]).bind(*call.args, **keywords)
            seen += 1
        for given in call.args if isinstance(call, ast.Call) else []:
            made = (
                imported.get(given.func.id)
                if isinstance(given, ast.Call) and isinstance(given.func, ast.Name)
                else None
            )
            if inspect.isclass(made) and issubclass(made, Method):
                assert ast.unparse(call.func) == "PlasticityCallback", ast.unparse(call)
    assert imported and seen


@pytest.mark.crash
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    pytest.importorskip({"fire": "timm", "continual": "transformers"}.get(path.stem.split("_")[0], "torch"))
    (tmp_path / "notebook.py").write_text(code_of(path))
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-2000:]
