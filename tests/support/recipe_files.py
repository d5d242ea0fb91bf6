"""Where the recipes are, and what tests call them."""

from pathlib import Path

ROOT = Path(__file__).parents[2] / "recipes"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))
