"""`lightning-fire init`: write files to start from, for your own data."""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

_FOLDER = Path(__file__).parent / "template"
# by name: purpose, and next steps in the folder
TEMPLATES = {
    "images": (
        "images in folders, one for each class, for any network",
        "put images into images/train/<class> and images/test/<class>",
        "lightning-fire compare recipe.yaml --methods vanilla full_reset fire --seeds 5",
    ),
    "tabular": (
        "a table that grows each week, for a network with embeddings",
        "in table.py, read your own weeks; it runs as it is, too",
        "lightning-fire compare recipe.yaml --methods vanilla full_reset fire --seeds 5 --metric val/mae --mode min"
        " --worth 0.01",
    ),
    "text": (
        "new text for a language model of Hugging Face; needs 'lightning-fire[huggingface]'",
        "in mine.py, name your own model and texts; it runs as it is, too",
        "python mine.py",
    ),
}


def init(args: Sequence[str] | None = None) -> Path:
    """Write the files of a template into a folder; return the folder."""
    width = max(map(len, TEMPLATES))
    parser = argparse.ArgumentParser(
        prog="lightning-fire init",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Write files to start from, for your own data and network, with comments on what to change.",
        epilog="templates:\n" + "\n".join(f"  {name:{width}}  {line}" for name, (line, *_) in TEMPLATES.items()),
    )
    parser.add_argument("folder", type=Path, help="output folder; created if it does not exist")
    parser.add_argument("--template", choices=TEMPLATES, default="images", help="(default: images)")
    options = parser.parse_args(args)
    folder: Path = options.folder
    files = {path: folder / path.name for path in sorted((_FOLDER / options.template).glob("*.*"))}
    if there := [str(new) for new in files.values() if new.exists()]:
        parser.error(f"{', '.join(there)}: exists already, and was not changed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for template, new in files.items():
            shutil.copyfile(template, new)
    except OSError as error:
        parser.error(f"{error.filename or folder} cannot be written: {error.strerror or error}")
    _, change, command = TEMPLATES[options.template]
    print(f"wrote {', '.join(map(str, files.values()))}")
    print(f"next: cd {folder}\n  {change}\n  {command}")
    return folder
