"""`lightning-fire init`: writes a recipe to start from."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

_TEMPLATE = Path(__file__).parent / "template"


def main(args: Sequence[str] | None = None) -> Path:
    """Run the command: write `recipe.yaml` and `mine.py` into a folder."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire init",
        allow_abbrev=False,
        description="Write a recipe to start from, for your own images and network: recipe.yaml and mine.py, with"
        " comments on what to change.",
    )
    parser.add_argument("folder", type=Path, help="output folder; made if it does not exist")
    folder = parser.parse_args(args).folder
    files = {path: folder / path.name for path in sorted(_TEMPLATE.glob("*.*"))}
    if there := [str(new) for new in files.values() if new.exists()]:
        parser.error(f"{', '.join(there)}: exists already, and was not changed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for template, new in files.items():
            shutil.copyfile(template, new)
    except OSError as error:
        parser.error(f"{error.filename or folder} cannot be written: {error.strerror or error}")
    print(f"wrote {', '.join(map(str, files.values()))}")
    print(
        f"next: cd {folder}, put images into images/train/<class> and images/test/<class>, change what is yours, then"
    )
    print("  lightning-fire compare recipe.yaml --methods vanilla full_reset fire --seeds 3")
    return folder / "recipe.yaml"
