"""`lightning-fire sweep`: tries the hyper-parameters of a method, chosen by Optuna."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.experiments import report
from lightning_fire.experiments.compare import add_common_arguments, nested, require_counts
from lightning_fire.experiments.history import History
from lightning_fire.experiments.publish import publish
from lightning_fire.experiments.runs import Run, merged, plan
from lightning_fire.experiments.train import train
from lightning_fire.recipe.recipe import SEARCH_SPACE, Recipe, find_recipe
from lightning_fire.recipe.strict_yaml import read_yaml

_ARGUMENTS = "intervention.init_args"

Setting = dict[str, Any]


class _FailedError(Exception):
    """A run of a setting failed, and `train` has said why."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire sweep",
        allow_abbrev=False,
        description="Try the hyper-parameters of a method on a recipe, each with several seeds, and print a table, the"
        " best first. A space of lists is tried as a grid, one with ranges by Optuna's TPE sampler. Finished runs are"
        " not run again. What is best is read off the test set: report it with seeds that had no part in the choice"
        " (compare --first-seed).",
    )
    parser.add_argument("--method", required=True, help="the method whose hyper-parameters are tried")
    parser.add_argument(
        "--space",
        type=Path,
        help=f"YAML file: by method, for each hyper-parameter a list of values, or low, high and maybe log (default:"
        f" {SEARCH_SPACE} beside the recipe or above it)",
    )
    parser.add_argument("--trials", type=int, help="settings to try (default: the whole grid; needed for ranges)")
    parser.add_argument(
        "--measure",
        choices=["final", "average", "online_last"],
        default="final",
        help="accuracy to maximise (default: final)",
    )
    add_common_arguments(parser, output="runs/<recipe>_<method>")
    return parser


def main(args: Sequence[str] | None = None) -> Setting:
    """Run the command, and return the best setting."""
    options = parser().parse_args(args)
    try:
        recipe = find_recipe(options.recipe)
        output = options.output or Path("runs", f"{recipe.name}_{options.method}")
        require_counts(options)
        (example, *_) = plan(recipe, [options.method], [0], output)  # refuses what there is not
        space = read_space(options.space or _find(recipe), options.method)
        _require_one_method(example, space)
        extra = nested(options.set)
        study = _study(space, options.trials)
    except (ImportError, OSError, ValueError, yaml.YAMLError) as error:
        parser().error(str(error))
    tried: dict[str, tuple[Setting, dict[int, History]]] = {}

    def objective(trial: Any) -> float:
        setting = {name: _suggest(trial, name, values) for name, values in space.items()}
        label = _label(options.method, setting)
        if label in tried and tried[label][0] != setting:
            raise SystemExit(f"{setting} and {tried[label][0]} would both be called {label}")
        if label not in tried:
            runs = [
                replace(example, method=label, seed=seed, folder=output / label / f"seed{seed}")
                for seed in range(options.first_seed, options.first_seed + options.seeds)
            ]
            print(f"\n{label}")
            histories, failed = train(runs, options.jobs, merged(extra, as_config(setting)))
            tried[label] = setting, {} if failed else histories[label]
        score = _score(tried[label][1], options.measure)
        if isnan(score):
            raise _FailedError
        return score

    study.optimize(objective, n_trials=options.trials, catch=(_FailedError,))
    done = {label: runs for label, (_, runs) in tried.items() if not isnan(_score(runs, options.measure))}
    if not done:
        raise SystemExit("no setting could be trained")
    best_first = dict(sorted(done.items(), key=lambda item: -_score(item[1], options.measure)))
    best = next(iter(best_first))
    publish(best_first, best, recipe, output)
    print(f"best {options.measure} accuracy: {best}; chosen on the test set, so report it with other seeds")
    return tried[best][0]


def read_space(path: Path, method: str) -> dict[str, Any]:
    """Read the search space of a method."""
    spaces = read_yaml(path)
    if not isinstance(spaces, Mapping) or not isinstance(spaces.get(method), Mapping) or not spaces[method]:
        known = sorted(map(str, spaces)) if isinstance(spaces, Mapping) else "none"
        raise ValueError(f"{path} has no search space for {method!r}; there are {known}")
    space = {}
    for name, values in spaces[method].items():
        if not isinstance(name, str):
            raise ValueError(f"{path}: {method} has {name!r}, which is no name of a hyper-parameter")
        if isinstance(values, list) and values:
            space[name] = [_number_of(value) for value in values]
        elif isinstance(values, Mapping) and _is_range(bounds := {k: _number_of(v) for k, v in values.items()}):
            space[name] = bounds
        else:
            raise ValueError(
                f"{path}: {method}.{name} must be a list of values, or numbers low and high, above 0 with log: true;"
                f" got {values!r}"
            )
        if f"{_ARGUMENTS}.{name}" in spaces[method]:
            raise ValueError(f"{path}: {method} has both {name} and {_ARGUMENTS}.{name}, which are the same")
    return space


def _is_range(bounds: Mapping[str, Any]) -> bool:
    if not {"low", "high"} <= set(bounds) <= {"low", "high", "log"}:
        return False
    low, high, log = bounds["low"], bounds["high"], bounds.get("log", False)
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
    return numbers and isinstance(log, bool) and low < high and (low > 0 or not log)


def _number_of(value: Any) -> Any:
    """YAML takes 1e-5 for a string."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _require_one_method(run: Run, space: Mapping[str, Any]) -> None:
    overlays = list(map(yaml.safe_load, run.configs[1:]))
    methods = [overlay.get("intervention") if isinstance(overlay, Mapping) else None for overlay in overlays]
    if any("." not in name for name in space) and not (methods and isinstance(methods[0], Mapping)):
        raise ValueError(f"{run.method} has not one intervention, whose arguments could be tried: {methods}")


def _find(recipe: Recipe) -> Path:
    for place in recipe.path.resolve().parents:
        if (place / SEARCH_SPACE).is_file():
            return place / SEARCH_SPACE
    raise ValueError(f"no {SEARCH_SPACE} beside {recipe.path} or above it: name one with --space")


def _study(space: Mapping[str, Any], trials: int | None) -> Any:
    """Make a study whose sampler proposes the same settings in every process, so that a sweep can be gone on with."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError("a sweep needs Optuna: pip install 'lightning-fire[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if all(isinstance(values, list) for values in space.values()):
        sampler: Any = optuna.samplers.GridSampler({name: values for name, values in space.items()}, seed=0)
    elif trials is None:
        raise ValueError("a space with ranges has no end: say how many settings to try, --trials N")
    else:
        sampler = optuna.samplers.TPESampler(seed=0)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, values["low"], values["high"], log=values.get("log", False))


def as_config(setting: Setting) -> dict[str, Any]:
    """Return what a setting adds to a recipe."""
    config: dict[str, Any] = {}
    for name, value in setting.items():
        for key in reversed((name if "." in name else f"{_ARGUMENTS}.{name}").split(".")):
            value = {key: value}
        config = merged(config, value)
    return config


def _label(method: str, setting: Setting) -> str:
    """Name a setting; also the name of a folder."""
    words = ",".join(f"{name}={value!r}" for name, value in setting.items())
    return re.sub(r"[^\w.,=+-]", "_", f"{method},{words}")


def _score(runs: Mapping[int, History], measure: str) -> float:
    """Return the mean over the runs; NaN if there are none, or one has not measured it."""
    values = [report.numbers(run)[measure] for run in runs.values()]
    return sum(values) / len(values) if values else float("nan")
