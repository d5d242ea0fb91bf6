"""Imports have one direction: read from the sources with `ast`."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_fire"

EVERYWHERE = {
    "_private",
    "atomic",
    "contracts",
    "elsewhere",
    "printable",
}  # every room may import these, of torch and tqdm alone
# room -> the rooms of the package that it may import from
MAY_IMPORT = {
    "_private": set(),
    "atomic": set(),
    "elsewhere": set(),
    "printable": set(),
    "_lightning": set(),
    "contracts": set(),
    "messages": {"distributed"},
    "functional": {"functional"},
    "when": set(),
    "distributed": set(),
    "where": {"where", "distributed"},
    "metrics": {"functional", "metrics"},
    "optim": {"functional", "where", "optim", "distributed"},
    "methods": {"functional", "when", "where", "methods", "optim", "distributed"},
    "callbacks": {
        "_lightning",
        "callbacks",
        "distributed",
        "functional",
        "messages",
        "methods",
        "optim",
        "when",
        "where",
    },
    "integrations": {"functional", "when", "where", "methods", "integrations", "distributed", "messages"},
    "nets": {"nets"},
    "experience": {"experience"},
    "data": {"_lightning", "data", "experience", "messages"},
    "modules": {"_lightning", "metrics", "nets", "modules"},
    "experiments": {"_lightning", "callbacks", "checkpoints", "experiments", "messages", "methods", "recipe", "when"},
    "board": {"board", "experiments", "integrations", "methods", "recipe", "when"},
    "checkpoints": {"functional", "where", "checkpoints", "cli"},
    "recipe": {
        "_lightning",
        "callbacks",
        "checkpoints",
        "cli",
        "data",
        "methods",
        "modules",
        "nets",
        "optim",
        "recipe",
        "when",
        "where",
        "messages",
    },
    "prepare_text": {"cli"},
    "cli": set(),  # imports the module of a command when it is given
}
# room -> what it may import from elsewhere than the standard library; rooms not named are free
ALLOWED_OUTSIDE = {
    "_private": {"torch", "tqdm"},
    "atomic": set(),
    "elsewhere": set(),
    "printable": set(),
    "functional": {"torch"},
    "distributed": {"torch"},
    "where": {"torch"},
    "when": set(),
    "messages": {"lightning_utilities"},
    "methods": {"torch"},
    "integrations": {"torch", "numpy", "accelerate", "transformers", "stable_baselines3"},
    "prepare_text": {"numpy", "tokenizers", "datasets"},
    "nets": {"torch", "transformers"},  # the latter only in causal_lm
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
    found["recipe"] = [path for path in found["recipe"] if "template" not in path.parts]  # a user's own files
    return found


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_imports_only_from_the_rooms_below_it(room):
    for path in rooms()[room]:
        inside = {name.split(".")[1] for name in imports(path) if name.startswith("lightning_fire.")}
        above = inside - MAY_IMPORT[room] - EVERYWHERE
        assert not above, f"{path.relative_to(PACKAGE)} imports {sorted(above)}"


@pytest.mark.parametrize("room", sorted(ALLOWED_OUTSIDE))
def test_pure_rooms_import_torch_at_most(room):
    import sys

    for path in rooms()[room]:
        outside = {name.split(".")[0] for name in imports(path)} - {"lightning_fire"} - set(sys.stdlib_module_names)
        assert outside <= ALLOWED_OUTSIDE[room], f"{path.relative_to(PACKAGE)} imports {sorted(outside)}"


def test_every_room_is_known_here():
    assert set(rooms()) <= set(MAY_IMPORT)


OWN = {"self", "cls", "super()", "os"}  # os._exit is documented
BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def foreign_private_names(source: str) -> list[str]:
    """Private attributes of any object but one's own, and imports of private names from other packages."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and ast.unparse(node.value) not in OWN:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            thing, name = [*node.args, ast.Constant(None)][:2]
            if isinstance(name, ast.Constant) and is_private(name.value) and ast.unparse(thing) not in OWN:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and not node.module.startswith("lightning_fire"):
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            found += [ast.unparse(node) for name in names if is_private(name)]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "trainer.fit_loop._data_source",
        "getattr(module, '_trainer', None)",
        "from torch.nn.modules.batchnorm import _NormBase",
        "from torch.utils._pytree import tree_map",
    ],
)
def test_foreign_private_names_are_found(source):
    assert foreign_private_names(source)


def test_private_names_of_other_packages_are_used_in_two_files_only():
    found = {path: foreign_private_names(path.read_text()) for path in PACKAGE.rglob("*.py")}
    for name in ("_private", "_lightning"):
        assert found.pop(PACKAGE / f"{name}.py")
    assert {str(path.relative_to(PACKAGE)): names for path, names in found.items() if names} == {}
