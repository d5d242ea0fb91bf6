"""What every comparison leaves for people: a table on the screen, files, and where they are."""

from collections.abc import Callable, Mapping
from pathlib import Path

from lightning_fire.experiments.whole_file import whole_file
from lightning_fire.recipe.recipe import Recipe

_WHAT = {".png": "picture", ".csv": "every run"}


def deliver(
    output: Path, table: str, files: Mapping[str, Callable[[Path], object]], note: str, name: str = "table.txt"
) -> None:
    """Print a table, write it and other files, and say what its numbers are and where picture and runs lie."""
    print(f"\n{table}\n")
    for file, write in {name: lambda part: part.write_text(table + "\n", encoding="utf-8"), **files}.items():
        with whole_file(output / file) as part:
            write(part)
    print(note)
    for ending, what in _WHAT.items():
        place(what, output / next(file for file in files if file.endswith(ending)))


def place(what: str, where: object) -> None:
    """Say where something is."""
    print(f"{what + ':':12} {where}")


def title_of(recipe: Recipe) -> str:
    """Return the title of a picture."""
    return " / ".join(recipe.name.parts).replace("_", " ")
