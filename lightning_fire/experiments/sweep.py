"""`lightning-fire sweep`: tunes the hyper-parameters of a method, by a grid or by Optuna."""

import argparse
import importlib.util
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from lightning_fire.experiments.branching import with_shared_starts
from lightning_fire.experiments.compare import (
    add_common_arguments,
    common,
    engine_for,
    metric_of,
    train_and_read,
    with_monitor,
)
from lightning_fire.experiments.runs import Run, lock_folder, merged, plan
from lightning_fire.printable import printable
from lightning_fire.recipe.recipe import SEARCH_SPACE, Recipe, as_yaml
from lightning_fire.recipe.strict_yaml import read_yaml

_ARGUMENTS = "method.init_args"

Setting = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire sweep",
        allow_abbrev=False,
        description="Try settings of a method on a recipe, each with several seeds, and print a table, best first. A"
        " search space of lists is a grid; ranges are sampled by Optuna's TPE. Finished runs are not run again. The"
        " best setting is chosen on the test set: report it with other seeds (compare best.yaml --first-seed).",
    )
    parser.add_argument("--method", required=True, help="method to tune")
    parser.add_argument(
        "--space",
        type=Path,
        help=f"YAML file: for each method and hyper-parameter a list of values, or low, high and maybe log (default:"
        f" {SEARCH_SPACE} beside the recipe or above it)",
    )
    parser.add_argument("--trials", type=int, help="number of settings (default: the whole grid; required for ranges)")
    parser.add_argument(
        "--measure",
        help="column of results.csv to maximize (losses: minimize), such as average (default: that of the decision of"
        " compare: final, of streams online_last)",
    )
    parser.add_argument("--prune", action="store_true", help="drop the worse half of the settings after each seed")
    add_common_arguments(parser, output="runs/<recipe>_<method>")
    return parser


def main(args: Sequence[str] | None = None) -> Setting:
    """Run the command; return the best setting."""
    options = parser().parse_args(args)
    try:
        recipe, output, seeds, extra = common(options, f"_{options.method}")
        example = plan(recipe, [options.method], [0], output, extra)[0]  # raises an error for an unknown method
        beside = (folder / SEARCH_SPACE for folder in recipe.path.resolve().parents)
        path = options.space or next(filter(Path.is_file, beside), None)
        if path is None:
            raise ValueError(f"no {SEARCH_SPACE} beside {recipe.path} or above it: name one with --space")
        space = read_space(path, options.method)
        methods = [overlay.get("method") for overlay in example.configs[1:]]
        if any("." not in name for name in space) and not (methods and isinstance(methods[0], Mapping)):
            raise ValueError(f"{options.method} is not one callback, whose arguments could be tried: {methods}")
        if not _is_grid(space) and importlib.util.find_spec("optuna") is None:
            raise ImportError("a space with ranges needs Optuna: pip install 'lightning-fire[sweep]'")
        engine = engine_for(recipe, options, output)
        if options.trials is None and not _is_grid(space):
            raise ValueError("a space with ranges has no end: say how many settings to try, --trials N")
        (example,) = with_monitor([example])
        metric_of(example, options)  # raises an error before training
    except (ImportError, OSError, ValueError, yaml.YAMLError) as error:
        parser().error(printable(str(error)))
    with lock_folder(output), closing(engine):
        sweep = Sweep(recipe, options, example, space, output, engine, seeds)
        sweep.study()
        return sweep.publish()


@dataclass
class Sweep:
    """Tried settings of a method, and their runs.

    Attributes:
        recipe: The recipe with the method.
        options: Options of the command: `method`, `trials`, `measure`, `prune`, and those of `train_and_read`.
        example: A run of the method, from which all others are derived.
        space: The values of each hyper-parameter.
        output: Folder of the runs.
        engine: Engine that trains them.
        seeds: Seeds of each setting.
        settings: Tried settings, by name.
        scores: Mean score of each setting trained with all seeds, by name; more is better.
        measure: The column that is maximized or, of losses, minimized; empty: that by which the report decides.
    """

    recipe: Recipe
    options: argparse.Namespace
    example: Run
    space: Mapping[str, Any]
    output: Path
    engine: Any
    seeds: Sequence[int]
    settings: dict[str, Setting] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    measure: str = ""

    def study(self) -> None:
        """Try the whole grid, or settings chosen by Optuna, as many at a time as the engine allows.

        The choice depends only on the scores: a restarted sweep makes the same choices and finds them trained.
        """
        if _is_grid(self.space):
            every = [dict(zip(self.space, values, strict=True)) for values in itertools.product(*self.space.values())]
            self._try(every[: self.options.trials])
            return
        import optuna
        from optuna.trial import TrialState

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
        study, left = optuna.create_study(sampler=sampler, direction="maximize"), self.options.trials
        while left > 0:
            trials = [study.ask() for _ in range(min(left, self.engine.limit))]
            left -= len(trials)
            settings = [{name: _suggest(trial, name, of) for name, of in self.space.items()} for trial in trials]
            for trial, (score, dropped) in zip(trials, self._try(settings), strict=True):
                if score is not None and dropped:
                    trial.report(score, step=0)
                    study.tell(trial, state=TrialState.PRUNED)
                else:
                    study.tell(trial, score, state=TrialState.FAIL if score is None else TrialState.COMPLETE)

    def _try(self, settings: Sequence[Setting]) -> list[tuple[float | None, bool]]:
        """Train settings; return the score of each, None if a run failed, and whether some seeds were left out."""
        rungs = [self.seeds[: n + 1] for n in range(len(self.seeds))] if self.options.prune else [self.seeds]
        labels = list(map(self._label, settings))
        alive, scores, best_first = labels, dict[str, float](), list[str]()
        for rung in filter(lambda _: alive, rungs):
            scores = {label: scores[label] for label in scores if label not in alive} | self._train(alive, rung)
            best_first = sorted((label for label in dict.fromkeys(alive) if label in scores), key=lambda n: -scores[n])
            alive = best_first[: -(-len(best_first) // 2)]
        self.scores |= {label: scores[label] for label in best_first}
        return [(scores.get(label), label not in best_first) for label in labels]

    def _train(self, labels: Sequence[str], seeds: Sequence[int]) -> dict[str, float]:
        """Train settings with some seeds, all at once; return the score of each setting without a failed run."""
        report, _ = train_and_read(self._runs(labels, seeds), self.engine, labels[0], self.options)
        if report is None:
            return {}
        self.measure = self.options.measure or report.compared.measure
        if self.measure not in report.numbers:
            raise SystemExit(f"results.csv has no column {self.measure}; it has {', '.join(report.numbers)}")
        of_labels = {label: report.of("", label, self.measure).values() for label in labels}
        mode = report.compared.mode if self.measure == report.compared.measure else report.mode
        sign = -1 if mode == "min" else 1
        means = {label: sign * sum(of) / len(of) for label, of in of_labels.items() if len(of) == len(seeds)}
        return {label: score for label, score in means.items() if not math.isnan(score)}

    def _runs(self, labels: Sequence[str], seeds: Sequence[int]) -> list[Run]:
        base, own = (*self.example.configs, {})[:2]
        runs = []
        for label in dict.fromkeys(labels):
            run = replace(self.example, method=label, configs=(base, merged(own, as_config(self.settings[label]))))
            runs += [replace(run, seed=seed, folder=self.output / label / f"seed{seed}") for seed in seeds]
        return with_shared_starts(runs)

    def _label(self, setting: Setting) -> str:
        """Name of a setting, and of its folder."""
        words = ",".join(f"{name}={value!r}" for name, value in setting.items())
        label = re.sub(r"[^\w.,=+-]", "_", f"{self.options.method},{words}")
        if self.settings.setdefault(label, setting) != setting:
            raise SystemExit(f"{setting} and {self.settings[label]} would both be called {label}")
        return label

    def publish(self) -> Setting:
        """Print the table, best first, write all files and `best.yaml`, and return the best setting."""
        best_first = sorted(self.scores, key=lambda label: -self.scores[label])
        if not best_first:
            raise SystemExit("no setting could be trained")
        best = best_first[0]
        report, _ = train_and_read(self._runs(best_first, self.seeds), self.engine, best, self.options)
        if report is not None:
            report.publish(self.output, self.recipe.title)
        own = merged(self.recipe.methods.get(self.options.method, {}), as_config(self.settings[best]))
        methods = {**self.recipe.methods, self.options.method: own}
        text = as_yaml({**self.recipe.base, "methods": methods, "starts": dict(self.recipe.starts)})
        (self.output / "best.yaml").write_text(f"# {best}: the best of {len(best_first)} settings\n{text}")
        print(
            f"best {self.measure}: {best}; chosen on the test set, so report it with other seeds:\n"
            f"  lightning-fire compare {self.output / 'best.yaml'} --methods vanilla {self.options.method}"
            f" --first-seed {self.seeds[-1] + 1}"
        )
        return self.settings[best]


def read_space(path: Path, method: str) -> dict[str, Any]:
    """Read the search space of a method."""
    spaces = read_yaml(path)
    if not isinstance(spaces, Mapping) or not isinstance(spaces.get(method), Mapping) or not spaces[method]:
        known = sorted(map(str, spaces)) if isinstance(spaces, Mapping) else "none"
        raise ValueError(f"{path} has no search space for {method!r}; there are {known}")
    return checked_space(path, method, spaces[method])


def checked_space(place: object, method: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a search space with strings such as `1e-5` converted to numbers; a ValueError names the entry."""
    space: dict[str, Any] = {}
    for name, values in given.items():
        if not isinstance(name, str):
            raise ValueError(f"{place}: {method} has {name!r}, which is not a name of a hyper-parameter")
        if isinstance(values, list) and values:
            space[name] = [_number_of(value) for value in values]
        elif isinstance(values, Mapping) and _is_range(bounds := {k: _number_of(v) for k, v in values.items()}):
            space[name] = bounds
        else:
            raise ValueError(
                f"{place}: {method}.{name} must be a list of values, or numbers low and high, above 0 with log: true;"
                f" got {values!r}"
            )
        if f"{_ARGUMENTS}.{name}" in given:
            raise ValueError(f"{place}: {method} has both {name} and {_ARGUMENTS}.{name}, which are the same")
    return space


def _is_grid(space: Mapping[str, Any]) -> bool:
    return all(isinstance(values, list) for values in space.values())


def _is_range(bounds: Mapping[str, Any]) -> bool:
    low, high, log = bounds.get("low"), bounds.get("high"), bounds.get("log", False)
    if type(low) not in (int, float) or type(high) not in (int, float) or set(bounds) - {"low", "high", "log"}:
        return False
    return isinstance(log, bool) and bool(low < high) and (low > 0 or not log)  # type: ignore[operator]


def _number_of(value: Any) -> Any:
    """Return a number also for a string such as `1e-5`, which YAML does not read as a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _suggest(trial: Any, name: str, values: Any) -> Any:
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    suggest = trial.suggest_int if whole else trial.suggest_float
    return suggest(name, values["low"], values["high"], log=values.get("log", False))


def as_config(setting: Setting) -> dict[str, Any]:
    """Return the configuration that a setting adds to a recipe."""
    config: dict[str, Any] = {}
    for name, value in setting.items():
        for key in reversed((name if "." in name else f"{_ARGUMENTS}.{name}").split(".")):
            value = {key: value}
        config = merged(config, value)
    return config
