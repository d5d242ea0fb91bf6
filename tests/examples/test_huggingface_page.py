"""docs/huggingface.md: its tutorial runs from top to bottom, and its table is that of the families that are tested."""

import re
import shlex
from pathlib import Path

import pytest

for library in ("accelerate", "safetensors", "transformers"):
    pytest.importorskip(library)

from language_models import FAMILIES  # noqa: E402

from lightning_fire.cli import main  # noqa: E402
from lightning_fire.functional import dfi_normalized  # noqa: E402
from lightning_fire.where import Weights  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text()
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", PAGE, re.DOTALL)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    """Two trainings, each from a loss near log 256; between them every matrix of the model becomes nearly isometric."""
    monkeypatch.chdir(tmp_path)
    assert [language for language, _ in BLOCKS] == ["python", "bash", "python"]
    names, deviations = {}, []
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "huggingface.md", "exec"), names)
            continue
        before, printed = names["model"], capsys.readouterr().out
        for line in code.splitlines():
            assert line.startswith("lightning-fire ")
            main(shlex.split(line)[1:])
        assert "replaced 13 weight matrices" in capsys.readouterr().out
        assert float(printed.split()[-1]) < 5.6
        start = type(before).from_pretrained("runs/phase1/fire")
        for model in (before, start):
            deviations.append([float(dfi_normalized(view.read())) for view in Weights().select(model)])
    assert min(deviations[0]) > 0.3
    assert sum(deviations[1]) < 0.3 * sum(deviations[0])


def test_the_table_is_that_of_the_tests():
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.search(r"\d+ of \d+ \|", line)]
    rows = {name: cells for name, *cells in lines}
    assert list(rows) == list(FAMILIES)
    for name, (attention, output, training, files) in rows.items():
        family = FAMILIES[name]
        number = f"{family.matrices} of {family.matrices}"
        assert (output, training) == ("tied" if family.tied else "its own", number)
        assert files == number + " with `--tied`" * family.tied
        assert bool(family.fused) == attention.startswith("one ")
