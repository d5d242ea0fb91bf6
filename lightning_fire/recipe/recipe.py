"""A recipe: one YAML file of an experiment, with a model, data and a Trainer, or a function, and methods to compare."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from lightning_fire.recipe.strict_yaml import read_yaml

_PACKAGE = Path(__file__).parents[1]
_INSTALLED = _PACKAGE / "recipes"  # searched first: another package may be named `recipes`
SHIPPED = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.with_name("recipes")  # of a clone
VANILLA = "vanilla"  # the recipe without a method
SCRATCH = "scratch"  # the same with a new network and optimizer, if others continue from a checkpoint
SHARED_START, FIRST_PHASE = "shared_start", "first_phase"  # trainings in addition to those of the methods
SEARCH_SPACE = "search_space.yaml"
_BESIDE = (SEARCH_SPACE, "gpu.yaml", "methods.yaml", "suite.yaml")  # files in folders of recipes that are not recipes
BEST = "best"
_OWN_KEYS = ("methods", "starts", "resources")
_NAME = r"\w([\w .,=+-]*[\w=+-])?"  # a folder, a cell of a spreadsheet, and safe to print


@dataclass(frozen=True)
class Recipe:
    """One experiment.

    Attributes:
        path: File of the recipe.
        base: Configuration of all runs, as for `lightning-fire fit -c`.
        methods: Configuration that each method adds to `base`, by name.
        starts: For two phases of training: by name, the number of epochs of the first phase before the second starts,
            or `best`, at the lowest `val/loss`.
        resources: `cpus`, `gpus` and `minutes` per run, for `lightning-fire compare`.
    """

    path: Path
    base: Mapping[str, Any]
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    starts: Mapping[str, int | str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> Path:
        """Path of the file below a folder `recipes`, otherwise its name, without `.yaml`."""
        parts = self.path.resolve().with_suffix("").parts
        return Path(*(parts[parts.index("recipes") + 1 :] if "recipes" in parts else parts[-1:]))

    @property
    def title(self) -> str:
        """Title of figures."""
        return " / ".join(self.name.parts).replace("_", " ")

    def layers(self, method: str) -> list[Mapping[str, Any]]:
        """Return the configuration of all runs and that of a method; later ones override."""
        if method not in self.methods and method != VANILLA:
            raise ValueError(f"{self.path} has no method {method}; there are {', '.join([VANILLA, *self.methods])}")
        above = self.methods.get(method)
        return [self.base, *([above] if above else [])]

    def words(self, method: str) -> list[str]:
        """Return the configuration of a method as options of `lightning-fire fit`."""
        return [word for layer in self.layers(method) for word in ("-c", as_yaml(layer))]


def as_yaml(config: Mapping[str, Any]) -> str:
    """Return configuration as YAML, without sorting keys."""
    return str(yaml.safe_dump(dict(config), sort_keys=False))


def find_recipe(name: str | Path) -> Recipe:
    """Read a recipe."""
    if path := _file(name):
        return _read(path)
    word, known = str(name), shipped_recipes()
    begins = [one for one in known if len(word) > 1 and re.search(rf"(?<![^/_]){re.escape(word)}", one)]
    last = {one.rpartition("/")[2]: one for one in known}
    similar = [*get_close_matches(word, known), *(last[one] for one in get_close_matches(word, last))]
    near = " or ".join(begins or dict.fromkeys(similar))
    hint = f"; did you mean {near}?" if near else ""
    raise FileNotFoundError(f"unknown recipe {name}: neither a file nor a name of `lightning-fire recipes`{hint}")


def _file(name: str | Path) -> Path | None:
    return next((path for path in (Path(name), SHIPPED / f"{name}.yaml") if path.is_file()), None)


def shipped_recipes() -> list[str]:
    """Return the short names of the recipes that come with the package."""
    paths = (path for path in SHIPPED.rglob("*.yaml") if path.name not in _BESIDE)
    return sorted(str(path.relative_to(SHIPPED).with_suffix("")) for path in paths)


def check_name(name: str, place: object = "") -> None:
    """Raise a ValueError unless a name of a method or start is valid for a folder and safe in a spreadsheet."""
    if name in (SHARED_START, FIRST_PHASE) or len(name) > 100 or not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{place}{': ' * bool(place)}{name!r} is not a valid name: it must begin with a letter, digit or _, contain"
            f" only these, spaces and .,=+-, have at most 100 characters, and not be {SHARED_START} or {FIRST_PHASE}"
        )


def extended(recipe: Recipe, name: str | Path) -> tuple[Recipe, Mapping[str, Any]]:
    """Add the methods of another file to a recipe; return the keys of the file that override those of all runs."""
    if not (path := _file(name)):
        raise FileNotFoundError(f"the configuration file {name} does not exist")
    more = _read(path)
    if more.starts or more.resources:
        raise ValueError(f"{path} may add keys and `methods` to a recipe, not `starts` and `resources`")
    if more.methods and {"model", "data"} <= more.base.keys():
        raise ValueError(f"{path} is a recipe with methods of its own: give the methods to add in another file")
    return replace(recipe, methods={**recipe.methods, **more.methods}), more.base


def refuse_own_keys(path: Path, content: Any) -> None:
    """Raise an error if a recipe is given where plain configuration is needed."""
    if isinstance(content, Mapping) and any(key in content for key in _OWN_KEYS):
        raise ValueError(f"{path} is a recipe with methods: give it without -c, as in fit {path} --method NAME")


def _read(path: Path) -> Recipe:
    content = read_yaml(path, load=get_loader("yaml"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold keys with values, got {content!r}")
    if isinstance(content.get("method"), dict) and "class_path" not in content["method"]:
        raise ValueError(f"{path}: `method` is one callback of all runs, with a class_path; did you mean `methods`?")
    methods, starts, resources = (content.pop(key, None) or {} for key in _OWN_KEYS)
    if not isinstance(methods, dict):
        raise ValueError(f"`methods` in {path} must give each method by its name, got {methods!r}")
    if not isinstance(starts, dict) or not all(
        when == BEST or (type(when) is int and when >= 1) for when in starts.values()
    ):
        raise ValueError(f"`starts` in {path} must give names to numbers of epochs or {BEST!r}, got {starts}")
    if not isinstance(resources, dict):
        raise ValueError(f"`resources` in {path} must give cpus, gpus or minutes of a run, got {resources!r}")
    for key, names in (("methods", methods), ("starts", starts)):
        for name in names:
            check_name(str(name), f"`{key}` in {path}")
    layers: dict[str, Mapping[str, Any]] = {}
    for name, layer in methods.items():
        if not isinstance(layer, dict | list | None):
            raise ValueError(f"{path}: the method {name} must be a class_path with init_args, or keys, got {layer!r}")
        if isinstance(layer, list) or "class_path" in (layer or {}):  # short for `method: …`
            layer = {"method": layer}
        layers[str(name)] = layer or {}
    return Recipe(path, content, layers, {str(name): when for name, when in starts.items()}, resources)
