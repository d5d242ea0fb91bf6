"""A recipe of a few seconds, in a folder of its own."""

from collections.abc import Mapping
from pathlib import Path

from test_cli import BASE

MONITOR = "    - class_path: PlasticityMonitor\n"


def tiny_recipe(folder: Path, overlays: Mapping[str, str]) -> Path:
    """Write `folder/recipes/tiny` with a base and overlays by name; return it."""
    recipe = folder / "recipes" / "tiny"
    recipe.mkdir(parents=True)
    for name, text in {"base": BASE + MONITOR, **overlays}.items():
        (recipe / f"{name}.yaml").write_text(text)
    return recipe
