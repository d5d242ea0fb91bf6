"""Random recipes: each is taken as written, or is an error of one paragraph that names the key or the file."""

import contextlib
import copy
import io
import logging
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from fuzz import fuzz
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_fire.cli import console, main
from lightning_fire.recipe.cli import RecipeCLI
from lightning_fire.recipe.strict_yaml import require_unambiguous

BASE = yaml.safe_load(
    """
seed_everything: 3
model:
  class_path: lightning_fire.modules.Classifier
  init_args:
    num_classes: 10
    net:
      class_path: lightning_fire.nets.VGG
      init_args: {in_channels: 1, image_size: 28, stages: [[4], [8]], head_widths: []}
    optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.001, betas: [0.9, 0.99]}}
    warmup: 0.2
data:
  class_path: lightning_fire.data.SmallFashionMNISTDataModule
  init_args:
    batch_size: 8
    protocol: {class_path: Continual, init_args: {num_chunks: 3, epochs: [2, 1, 1], access: current}}
trainer:
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  limit_train_batches: 2
  gradient_clip_val: 0.5
  callbacks:
  - {class_path: PlasticityCallback, init_args: {method: {class_path: OptimizerReset}}}
  - {class_path: PlasticityMonitor, init_args: {every_n_epochs: 2}}
"""
)
OVERLAY = yaml.safe_load(
    """
method:
  class_path: FIRE
  init_args:
    where: {class_path: Weights, init_args: {preset: cnn, exclude: [head]}}
    steps: 5
    scale: procrustes
when: [{class_path: AtNewData}, {class_path: AtEpochs, init_args: {epochs: [3]}}]
"""
)


class Outcome:
    """Result of a recipe: a configuration, or a message."""

    def __init__(self, config: Any, code: Any, message: str):
        self.config, self.code, self.message = config, code, message


def run(*texts: str | bytes) -> Outcome:
    """Run `lightning-fire fit` on files named a.yaml, b.yaml, …, up to where training would begin."""
    parsed: list[Any] = []
    parse = RecipeCLI.parse_arguments

    def keep(cli: RecipeCLI, *args: Any) -> None:
        parse(cli, *args)
        parsed.append(cli.config.fit.clone())

    out, err = io.StringIO(), io.StringIO()
    logging.disable()  # the Trainer prints much
    with contextlib.ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = ["lightning-fire", "fit"]
        for name, text in zip("abcdef", texts, strict=False):
            (folder / f"{name}.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
            words += ["-c", str(folder / f"{name}.yaml")]
        stack.enter_context(patch.object(sys, "argv", words))
        stack.enter_context(patch.object(RecipeCLI, "parse_arguments", keep))
        stack.enter_context(patch.object(RecipeCLI, "fit", lambda cli, **_: None, create=True))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of the Trainer, on its settings
        code: Any = 0
        try:
            console()
        except SystemExit as leaving:
            code = leaving.code
    text = f"{err.getvalue()}\n{code if isinstance(code, str) else ''}"
    _, _, message = text.partition("error: ")
    assert "Traceback" not in out.getvalue() + text
    return Outcome(None if code else parsed[0], code, message.strip())


def check(outcome: Outcome, written: dict, names: list[str]) -> None:
    """Assert that it is taken as written, or is an error of one paragraph with one of some names in it."""
    if outcome.config is None:
        assert outcome.code not in (0, None)
        assert outcome.message
        assert "\n\n" not in outcome.message
        assert len(outcome.message.splitlines()) <= 45
        assert any(name in outcome.message for name in names), (names, outcome.message)
    else:
        assert outcome.code == 0
        assert_holds(outcome.config, written, "recipe")


def assert_holds(config: Any, written: Any, place: str) -> None:
    """Every key that was written is in the configuration, with its value."""
    if isinstance(written, dict):
        if "class_path" in written and written["class_path"] not in (None, "null"):
            assert str(config["class_path"]).rsplit(".", 1)[-1] == written["class_path"].rsplit(".", 1)[-1], place
            written = {key: value for key, value in written.items() if key != "class_path"}
        for key, value in written.items():
            *parents, last = key.removesuffix("+").split(".")
            holder = config
            for parent in parents:
                holder = holder[parent]
            assert last in holder, f"{place}.{key} is lost"
            assert_holds(holder[last], value, f"{place}.{key}")
    elif isinstance(written, list):
        assert len(config) == len(written), place
        for number, (one, other) in enumerate(zip(config, written, strict=True)):
            assert_holds(one, other, f"{place}[{number}]")
    elif isinstance(written, str) and not isinstance(config, str):  # a short class name, or a quoted number
        assert meaning_of(config) == yaml.safe_load(written) or meaning_of(config).endswith(written), place
    else:
        assert type(config) is type(written) or isinstance(config, float), place
        assert config == written or config != config, place  # NaN is not itself


def meaning_of(value: Any) -> Any:
    return value["class_path"] if hasattr(value, "class_path") else value


def test_the_recipe_itself_is_taken_as_it_is_written():
    outcome = run(yaml.safe_dump(BASE), yaml.safe_dump(OVERLAY))
    assert outcome.config is not None, outcome.message
    check(outcome, {**BASE, **OVERLAY}, [])
    with pytest.raises(AssertionError, match=r"recipe\.model\.init_args\.wramup is lost"):
        assert_holds(outcome.config, {"model": {"init_args": {"wramup": 0.2}}}, "recipe")
    with pytest.raises(AssertionError, match=r"recipe\.seed_everything"):
        assert_holds(outcome.config, {"seed_everything": 4}, "recipe")


# where


Path_ = tuple[str | int, ...]


def paths_in(value: Any, place: Path_ = ()) -> list[Path_]:
    """Paths of all values in a recipe, mappings and lists included, the recipe itself first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, below in inner for found in paths_in(below, (*place, key)))]


def at(value: Any, place: Path_) -> Any:
    for key in place:
        value = value[key]
    return value


def with_value(place: Path_, value: Any) -> dict:
    """The recipe with one value replaced."""
    recipe = copy.deepcopy({**BASE, **OVERLAY})
    at(recipe, place[:-1])[place[-1]] = value
    return recipe


def as_files(recipe: dict) -> list[str]:
    """As base and overlay."""
    overlay = {key: value for key, value in recipe.items() if key in OVERLAY}
    base = {key: value for key, value in recipe.items() if key not in OVERLAY}
    return [yaml.safe_dump(one, allow_unicode=True, sort_keys=False) for one in (base, overlay) if one]


WHOLE = {**BASE, **OVERLAY}
VALUES = paths_in(WHOLE)[1:]
KEYS = [place for place in VALUES if isinstance(place[-1], str)]
LINE = [".yaml, line", '""']  # a message with file and line need not name the key; an empty key has no name


# what


CLASSES = [
    "lightning_fire.nets.ResNet",
    "AtNewData",
    "Weights",
    "FIRE",
    "FIRECallback",
    "lightning_fire.data.CIFAR10DataModule",
    "Continual",
    "torch.nn.ReLU",
    "torch.optim.SGD",
    "lightning.pytorch.Trainer",
    "subprocess.Popen",
    "builtins.dict",
    "os.getcwd",
    "lightning_fire",
    "lightning_fire.no.Such",
    "no_such_module.Class",
    "Nothing",
    "",
    ".",
    "a b",
]
LETTERS = st.text(st.sampled_from("abcxyz_ éß☃漢'\"#:-&*!|>%@`"), max_size=6)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 3, 10**30, -(10**30), -0.5, 1.5, 1e308, float("inf"), float("nan")]),
    st.sampled_from(
        ["", "null", "true", "5", "1e-3", "~", "[1, 2]", "{a: 1}", "../..", "\x00", "\ud800", "FIRECallback"]
    ),
    st.sampled_from(CLASSES),
    LETTERS,
)
classes = st.fixed_dictionaries(
    {"class_path": st.sampled_from(CLASSES)}, optional={"init_args": st.dictionaries(LETTERS, scalars, max_size=1)}
)
values = st.one_of(
    scalars,
    classes,
    st.lists(st.one_of(scalars, classes), max_size=3),
    st.dictionaries(LETTERS, scalars, max_size=2),
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(LETTERS, inner, max_size=2)),
)


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[Path_, str]:
    """A key of the recipe, one letter off: the path of its mapping, and the misspelt key."""
    *place, key = draw(st.sampled_from(KEYS))
    letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_"))
    at_ = draw(st.integers(0, len(key) - 1))
    wrong = draw(
        st.sampled_from(
            [
                key[:at_] + key[at_ + 1 :],
                key[:at_] + letter + key[at_:],
                key[:at_] + letter + key[at_ + 1 :],
                key[:at_] + key[at_ + 1 : at_ + 2] + key[at_] + key[at_ + 2 :],
                key.upper(),
                key + " ",
            ]
        )
    )
    return tuple(place), wrong


# the properties


@pytest.mark.slow
@fuzz(15)
@given(misspelt())
@example(((), "interventon"))
@example((("trainer", "callbacks", 1, "init_args"), "every_n_epoch"))
def test_a_misspelt_key(found):
    place, wrong = found
    recipe = with_value((*place, wrong), next(iter(at(WHOLE, place).values())))
    check(run(*as_files(recipe)), recipe, [wrong.strip()])


@pytest.mark.slow
@fuzz(15)
@given(st.sampled_from(VALUES), values)
@example(("seed_everything",), -1)
@example(("trainer",), None)
@example(("model", "init_args", "net"), {})
@example(("model", "init_args", "net", "init_args", "in_channels"), None)
@example(("model", "init_args", "net", "init_args", "in_channels"), 10**30)
@example(("data", "init_args", "protocol"), None)
@example(("data", "init_args", "protocol", "init_args", "num_chunks"), 10**30)
@example(("when", 0), {"class_path": "lightning_fire.nets.ResNet"})
@example(("method", "init_args", "steps"), 10**30)
def test_a_value_of_any_kind(place, value):
    recipe = with_value(place, value)
    *_, name = [key for key in place if isinstance(key, str) and key not in ("init_args", "class_path")]
    others = [f"`{key}`" for key in at(WHOLE, place[:-1])]  # what is wrong may be both together
    check(run(*as_files(recipe)), recipe, [name, *others, *LINE])


@pytest.mark.parametrize(
    ("again", "key"),
    [
        ("seed_everything: 4", "seed_everything"),
        ("trainer+: {}", "trainer"),
        ("trainer.accelerator: gpu", r"trainer\.accelerator"),
        ("model.init_args.net: {class_path: torch.nn.ReLU}", r"model\.init_args\.net"),
        ("data: {init_args: {batch_size: 8, batch_size: 9}}", "batch_size"),
    ],
)
def test_a_key_given_twice(again, key):
    """YAML would take the last one, also where jsonargparse takes `a.b` or `a+`."""
    base = yaml.safe_dump(BASE)
    for text in (f"{base}{again}\n", f"{again}\n{base}"):
        outcome = run(text)
        assert outcome.code == 2
        assert re.search(rf"a\.yaml, line \d+: the key (\S+\.)?{key}(\.class_path)? is given twice", outcome.message)


def test_what_a_recipe_names_and_the_words_of_the_command_are_read_strictly(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(yaml.safe_dump(BASE))
    Path("trainer.yaml").write_text("max_epochs: 4\nmax_epochs: 5\n")
    for words in (["--trainer", "trainer.yaml"], ["-c", "{trainer: {max_epochs: 4}, trainer.max_epochs: 5}"]):
        with pytest.raises(SystemExit) as leaving:
            main(["fit", "-c", "base.yaml", *words])
        assert leaving.value.code == 2
        assert re.search(
            r"the key (trainer\.)?max_epochs is given twice|Unable to load config", capsys.readouterr().err
        )


# mappings that hold the one before twice, by aliases
TWICE_EACH = b"".join(b"%c: &%c {p: *%c, q: *%c}\n" % (n, n, n - 1, n - 1) for n in b"bcdefghijkl")
BILLION_LAUGHS = b"a: &a {x: 1}\n" + TWICE_EACH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "b.yaml must hold keys with values, got None"),
        (b"# vanilla\n", "b.yaml must hold keys with values, got None"),
        (b"- class_path: FIRECallback\n", "b.yaml must hold keys with values, got [{'class_path': 'FIRECallback'}]"),
        (b"FIRECallback\n", "b.yaml must hold keys with values, got 'FIRECallback'"),
        (b"\x89PNG\r\n\x1a\n\x00", "b.yaml: 'utf-8' codec can't decode byte 0x89 in position 0"),
        (b"method:\n\tclass_path: X\n", "b.yaml, line 2: found character '\\t' that cannot start any token"),
        (b"method: {class_path: X\n", "b.yaml, line 2: did not find expected ',' or '}'"),
        (b"a: 1\n---\na: 2\n", "b.yaml, line 2: but found another document"),
        (b"a: &a [*a]\n", "b.yaml: it is nested too deeply, or an alias refers to a node that contains it"),
        (b"a: " + b"[" * 3000, "b.yaml: it is nested too deeply"),
        (b"a: " + b"9" * 5000, "b.yaml: Exceeds the limit"),
        (b"x: !!python/object/apply:os.getcwd []\n", "python/object/apply:os.getcwd"),
        (b"a: 0b_\n", "b.yaml: invalid literal for int() with base 2"),
        (BILLION_LAUGHS, "b.yaml: it has more than 10,000 values"),
    ],
)
def test_files_that_are_not_recipes_are_named(text, message):
    outcome = run(yaml.safe_dump(BASE), text)
    assert outcome.code == 2
    assert message in outcome.message.replace(
        "expected ',' or '}', but got '<stream end>'", "did not find expected ',' or '}'"
    )


def test_aliases_that_repeat_little_are_followed():
    require_unambiguous("a: &a {b: 1}\nc: {d: *a, e: *a}\nf: [*a, *a]")
    with pytest.raises(yaml.YAMLError, match=r"the key c\.b is given twice"):
        require_unambiguous("a: &a {b: 1}\nc: *a\nc.b: 2")
    require_unambiguous("a: &a 1\nb: [" + 9996 * "*a, " + "*a]")
    with pytest.raises(yaml.YAMLError, match="it has more than 10,000 values"):
        require_unambiguous("a: &a 1\nb: [" + 9997 * "*a, " + "*a]")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("seed_everything", -1, "seed_everything must be between 0 and 4294967295, got -1"),
        ("seed_everything", 2**32, "seed_everything must be between 0 and 4294967295, got 4294967296"),
        ("trainer", None, "trainer must hold keys with values, got None"),
        ("trainer.num_nodes", None, "is not a value of trainer.num_nodes"),
        ("model.init_args.net.init_args.in_channels", None, "not a value of model.init_args.net.init_args.in_channels"),
        ("data.init_args.batch_size", None, "is not a value of data.init_args.batch_size"),
        ("data.init_args.protocol", None, "is not a value of data.init_args.protocol"),
        ("interventon", {}, "unknown key interventon"),
        ("interventon", 3, "interventon"),
        ("method.steps", 5, "steps"),
        ("method.init_args.step", {"of": {}}, "step"),
        ("data.init_args.protocol.num_chunks", 3, "num_chunks"),
        ("trainer.max_epoch", {}, "unknown key trainer.max_epoch"),
        ("method.init_args.where.init_args.exlude", {"a": {}}, "method.init_args.where.init_args.exlude.a"),
        ("model", {}, "model must name a class with class_path"),
        ("model.init_args.net", {}, "model.init_args.net must name a class with class_path"),
        ("trainer.callbacks", [{}], "trainer.callbacks[0] must name a class with class_path"),
        ("when", {}, 'Parser key "when"'),
        ("data.init_args.protocol.init_args.num_chunks", 0, "`num_chunks` must be at least 1, got 0"),
        ("model.init_args.net.init_args.in_channels", 10**30, "VGG(num_classes=200, in_channels=1000000000"),
        ("model.init_args.net.init_args.in_channels", 10**30, "JSONARGPARSE_DEBUG=true shows where"),
    ],
)
def test_errors_name_the_cause(place, value, message):
    outcome = run(*as_files(with_value(tuple(place.split(".")), value)))
    assert outcome.code == 2
    assert message in outcome.message


@pytest.mark.parametrize(
    "place",
    [
        "trainer.max_epochs",
        "trainer.gradient_clip_val",
        "model.init_args.optimizer",
        "data.init_args.transform",
        "when",
        "method.init_args.where.init_args.include",
        "model.init_args.optimizer.init_args.foreach",
        "seed_everything",
    ],
)
def test_null_where_it_means_something(place):
    recipe = with_value(tuple(place.split(".")), None)
    outcome = run(*as_files(recipe))
    assert outcome.config is not None, outcome.message
    check(outcome, recipe, [])


def test_any_error_of_a_constructor_ends_in_a_message():
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("colour")

    with patch.object(RecipeCLI, "instantiate_trainer", fail):
        outcome = run(*as_files(WHOLE))
    assert (outcome.code, outcome.message) == (2, "KeyError: 'colour' (JSONARGPARSE_DEBUG=true shows where)")


def test_errors_are_short():
    """argparse would print the usage first, of a hundred lines."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), pytest.raises(SystemExit), warnings.catch_warnings():
        RecipeCLI(["fit", "--trainer.max_epoch", "3"])
    assert len(err.getvalue().splitlines()) <= 4
    assert err.getvalue().startswith("usage: lightning-fire ")
