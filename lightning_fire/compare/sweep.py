"""`lightning-fire sweep`: tries the hyper-parameters of a method, chosen by Optuna."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.compare import report
from lightning_fire.compare.command import add_common_arguments, nested, require_counts
from lightning_fire.compare.history import History
from lightning_fire.compare.publish import publish
from lightning_fire.compare.runs import merged, plan
from lightning_fire.compare.train import train

SUMMARY = "try the hyper-parameters of a method; needs pip install 'lightning-fire[sweep]'"
SPACES = "search_space.yaml"

Setting = dict[str, Any]


class _FailedError(Exception):
    """A run of a setting failed, and `train` has said why."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire sweep",
        description="Try the hyper-parameters of a method on a recipe, each with several seeds, and print a table, the"
        " best first. A space of lists is tried as a grid, one with ranges by Optuna's TPE sampler. Finished runs are"
        " not run again. What is best is read off the test set: report it with seeds that had no part in the choice"
        " (compare --first-seed).",
    )
    parser.add_argument("--method", required=True, help="the overlay whose hyper-parameters are tried")
    parser.add_argument(
        "--space",
        type=Path,
        help=f"YAML file: by method, for each hyper-parameter a list of values, or low, high and maybe log (default:"
        f" {SPACES} in the recipe's folder or above it)",
    )
    parser.add_argument("--trials", type=int, help="settings to try (default: the whole grid; needed for ranges)")
    parser.add_argument(
        "--measure", choices=["final", "average"], default="final", help="accuracy to maximise (default: final)"
    )
    add_common_arguments(parser)
    return parser


def main(args: Sequence[str] | None = None) -> Setting:
    """Run the command.

    Args:
        args: The words after `lightning-fire sweep`. Default: those of the process.

    Returns:
        The best setting.

    Raises:
        SystemExit: If an argument is wrong, or no setting could be trained.
    """
    options = parser().parse_args(args)
    output = options.output or Path("runs") / f"{options.recipe.resolve().name}_{options.method}"
    try:
        require_counts(options)
        (example, *_) = plan(options.recipe, [options.method], [0], output)  # refuses what there is not
        space = read_space(options.space or _find(options.recipe), options.method)
        extra = nested(options.set)
        study = _study(space, options.trials)
    except (ImportError, OSError, ValueError, yaml.YAMLError) as error:
        parser().error(str(error))
    tried: dict[str, tuple[Setting, dict[int, History]]] = {}

    def objective(trial: Any) -> float:
        setting = {name: _suggest(trial, name, values) for name, values in space.items()}
        label = ",".join(f"{name}={_short(value)}" for name, value in setting.items())
        if label not in tried:
            runs = [
                replace(example, method=label, seed=seed, folder=output / label / f"seed{seed}")
                for seed in range(options.first_seed, options.first_seed + options.seeds)
            ]
            print(f"\n{label}")
            histories, failed = train(runs, options.jobs, merged(extra, as_config(setting)))
            tried[label] = setting, {} if failed else histories[label]
        if not tried[label][1]:
            raise _FailedError
        return _score(tried[label][1], options.measure)

    study.optimize(objective, n_trials=options.trials, catch=_FailedError)
    done = {label: runs for label, (_, runs) in tried.items() if runs}
    if not done:
        raise SystemExit("no setting could be trained")
    best_first = dict(sorted(done.items(), key=lambda item: -_score(item[1], options.measure)))
    publish(best_first, options.recipe, output)
    best = next(iter(best_first))
    print(f"best {options.measure} accuracy: {best}; chosen on the test set, so report it with other seeds")
    return tried[best][0]


def read_space(path: Path, method: str) -> dict[str, Any]:
    """Read the search space of a method.

    Args:
        path: YAML file: by method, for each hyper-parameter a list of values, or a mapping with `low`, `high` and maybe
            `log: true`. A name with dots is a key of the recipe, one without an argument of the method.
        method: The method.

    Returns:
        By hyper-parameter.

    Raises:
        ValueError: If the file has no space for the method, or one that is neither.
        OSError: If there is no such file.
    """
    spaces = yaml.safe_load(path.read_text())
    if not isinstance(spaces, Mapping) or not isinstance(spaces.get(method), Mapping) or not spaces[method]:
        known = sorted(spaces) if isinstance(spaces, Mapping) else "none"
        raise ValueError(f"{path} has no search space for {method!r}; there are {known}")
    for name, values in spaces[method].items():
        a_list = isinstance(values, list) and values
        a_range = (
            isinstance(values, Mapping)
            and {"low", "high"} <= set(values) <= {"low", "high", "log"}
            and all(isinstance(values[end], int | float) for end in ("low", "high"))
            and values["low"] < values["high"]
        )
        if not (a_list or a_range):
            raise ValueError(
                f"{path}: {method}.{name} must be a list of values, or low and high (and log: true), got {values!r}"
            )
    return dict(spaces[method])


def _find(recipe: Path) -> Path:
    folder = recipe.resolve()
    for place in (folder, *folder.parents):
        if (place / SPACES).is_file():
            return place / SPACES
    raise ValueError(f"no {SPACES} in {recipe} or above it: name one with --space")


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
    """Return what a setting adds to a recipe.

    Args:
        setting: By hyper-parameter.
    """
    config: dict[str, Any] = {}
    for name, value in setting.items():
        for key in reversed((name if "." in name else f"intervention.init_args.{name}").split(".")):
            value = {key: value}
        config = merged(config, value)
    return config


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _score(runs: Mapping[int, History], measure: str) -> float:
    values = [report.numbers(run)[measure] for run in runs.values()]
    return sum(values) / len(values)
