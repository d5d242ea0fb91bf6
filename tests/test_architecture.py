"""Imports go one way: read from the sources with `ast`."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_fire"

# room -> the rooms of the package that it may import from
MAY_IMPORT = {
    "functional": {"functional"},
    "when": set(),
    "distributed": set(),
    "where": {"where", "distributed"},
    "metrics": {"functional", "metrics"},
    "optim": {"functional", "where", "optim"},
    "methods": {"functional", "where", "methods", "distributed"},
    "callbacks": {"functional", "when", "where", "methods", "optim", "callbacks", "distributed"},
    "nets": {"nets"},
    "experience": {"experience"},
    "data": {"data", "experience"},
    "modules": {"metrics", "nets", "modules"},
    "compare": {
        "functional",
        "checkpoints",
        "compare",
        "recipe",
        "cli",
    },  # cli only inside the function that trains, in a process
    "checkpoints": {"functional", "where", "checkpoints"},
    "recipe": {"checkpoints", "recipe"},
    "text": {"checkpoints", "text"},  # files that are there in full
    "cli": {"callbacks", "checkpoints", "data", "modules", "nets", "optim", "compare", "recipe", "text"},
}
# room -> what it may import from elsewhere than the standard library; rooms not named are free
ALLOWED_OUTSIDE = {
    "functional": {"torch"},
    "distributed": {"torch"},
    "where": {"torch"},
    "when": set(),
    "methods": {"torch"},
    "text": {"numpy", "tqdm", "tokenizers", "datasets"},
    "nets": {"torch", "transformers"},  # the latter only where GPT exchanges weights with it
}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def rooms() -> dict[str, list[Path]]:
    found = {path.stem: [path] for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", "__main__")}
    found |= {path.name: sorted(path.rglob("*.py")) for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    return found


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_imports_only_from_the_rooms_below_it(room):
    for path in rooms()[room]:
        inside = {name.split(".")[1] for name in imports(path) if name.startswith("lightning_fire.")}
        assert inside <= MAY_IMPORT[room], f"{path.relative_to(PACKAGE)} imports {sorted(inside - MAY_IMPORT[room])}"


@pytest.mark.parametrize("room", sorted(ALLOWED_OUTSIDE))
def test_pure_rooms_import_torch_at_most(room):
    import sys

    for path in rooms()[room]:
        outside = {name.split(".")[0] for name in imports(path)} - {"lightning_fire"} - set(sys.stdlib_module_names)
        assert outside <= ALLOWED_OUTSIDE[room], f"{path.relative_to(PACKAGE)} imports {sorted(outside)}"


def test_every_room_is_known_here():
    assert set(rooms()) <= set(MAY_IMPORT)
