"""Statistics over several tasks, and the command that sums up comparisons."""

import csv
import itertools
import statistics
from pathlib import Path

import numpy as np
import pytest

from lightning_fire.cli import main
from lightning_fire.experiments.statistics import interquartile_mean, probability_of_improvement, resampled

SHAPES = [(1, 1), (2, 1), (3, 2), (5, 3), (10, 7)]


def scores(shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(float)  # with ties


def slow_interquartile_mean(values: np.ndarray) -> float:
    every = sorted(values.ravel().tolist())
    for _ in range(len(every) // 4):
        every.pop(0), every.pop()
    return statistics.fmean(every)


def slow_probability_of_improvement(own: np.ndarray, others: np.ndarray) -> float:
    of_tasks = []
    for task in range(own.shape[1]):
        pairs = list(itertools.product(own[:, task], others[:, task]))
        of_tasks.append(sum(1 if a > b else 0.5 if a == b else 0 for a, b in pairs) / len(pairs))
    return statistics.fmean(of_tasks)


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_are_those_written_out(shape):
    own, others = scores(shape), scores((shape[0] + 2, shape[1]), seed=1)
    assert interquartile_mean(own) == pytest.approx(slow_interquartile_mean(own))
    assert probability_of_improvement(own, others) == pytest.approx(slow_probability_of_improvement(own, others))


def test_statistics_of_many_resamples_are_those_of_each():
    own, others = resampled(scores((5, 3)), 20), resampled(scores((4, 3), seed=1), 20)
    assert interquartile_mean(own).tolist() == pytest.approx([float(interquartile_mean(one)) for one in own])
    expected = [float(probability_of_improvement(*pair)) for pair in zip(own, others, strict=True)]
    assert probability_of_improvement(own, others).tolist() == pytest.approx(expected)
    assert probability_of_improvement(others, own).tolist() == pytest.approx([1 - p for p in expected])


def test_runs_are_drawn_of_each_task_by_itself():
    own = np.arange(12.0).reshape(4, 3)  # all different
    drawn = resampled(own, 1000)
    assert drawn.shape == (1000, 4, 3) and np.array_equal(drawn, resampled(own, 1000))
    assert not np.array_equal(drawn, resampled(own, 1000, seed=1))
    for task in range(3):
        assert set(np.unique(drawn[..., task])) == set(own[:, task])
    rows = drawn - np.arange(3)
    assert (rows[..., 0] != rows[..., 1]).mean() == pytest.approx(0.75, abs=0.05)  # not the same run in all tasks
    curves = np.stack([own, -own], axis=-1)
    assert np.array_equal(resampled(curves, 10)[..., 1], -resampled(own, 10))


# scores of two methods, and the results of rliable 1.2 with 10,000 resamples: interquartile means, P(better)
FIRST = np.array([[0.12, 0.31], [0.25, -0.4], [-0.75, 0.5], [0.05, 0.22], [0.4, 0.9]])
SECOND = np.array([[0.2, 0.3], [0.25, 0.1], [0.35, 0.7], [0.15, 0.62], [0.5, 0.8]])
RLIABLE = {"vanilla": (0.225, -0.113, 0.393), "fire": (0.37, 0.217, 0.535), "better": (0.67, 0.4, 0.9)}


def write(folder: Path, columns: str, *rows: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "results.csv").write_text("\n".join([columns, *rows]) + "\n")
    return folder


def write_scores(folder: Path, of_methods: dict[str, list[float]]) -> Path:
    rows = [f"{method},{seed},{score}" for method, of in of_methods.items() for seed, score in enumerate(of)]
    return write(folder, "method,seed,final", *rows)


@pytest.fixture
def tasks(tmp_path) -> list[str]:
    """Two tasks of other scales, whose normalized scores are `FIRST` of vanilla and `SECOND` of fire."""
    words = []
    for task, (low, high) in enumerate([(-10, 30), (100, 900)]):
        of = {"vanilla": FIRST, "fire": SECOND, f"only_{task}": FIRST}
        scaled = {method: [low + (high - low) * score for score in own[:, task]] for method, own in of.items()}
        words.append(f"{write_scores(tmp_path / f'task{task}', scaled)}={low}:{high}")
    return words


def test_sums_up_as_rliable_does(tasks, tmp_path, capsys):
    result = main(["aggregate", *tasks, "--output", str(tmp_path / "out")])
    assert list(result) == ["vanilla", "fire"]
    assert result["vanilla"][0] == pytest.approx(RLIABLE["vanilla"], abs=0.02)
    assert result["fire"][0] == pytest.approx(RLIABLE["fire"], abs=0.02)
    assert result["fire"][1] == pytest.approx(RLIABLE["better"], abs=0.04)
    assert np.isnan(result["vanilla"][1]).all()
    lines = (tmp_path / "out" / "table.txt").read_text().splitlines()
    assert lines[2].split()[:4] == ["vanilla", "2", "5", f"{RLIABLE['vanilla'][0]:.3f}"]
    assert lines[3].split()[-4] == f"{RLIABLE['better'][0]:.2f}"
    assert "score: normalized final;" in capsys.readouterr().out


def test_writes_the_scores_of_all_runs_and_the_table(tasks, tmp_path):
    out = tmp_path / "deep" / "out"
    main(["aggregate", *tasks, "--output", str(out), "--methods", "fire", "vanilla"])
    with open(out / "runs.csv") as file:
        rows = list(csv.DictReader(file))
    scores = np.array([[float(r["final"]) for r in rows if r["method"] == m] for m in ("fire", "vanilla")])
    assert np.allclose(scores[0].reshape(2, 5).T, SECOND) and np.allclose(scores[1].reshape(2, 5).T, FIRST)
    assert {row["task"] for row in rows} == {str(tmp_path / f"task{n}") for n in (0, 1)}
    assert "P(better than vanilla)" in (out / "table.tex").read_text()


def test_fewer_than_ten_runs_have_no_bootstrap_interval(tmp_path, capsys):
    nine, five = np.random.default_rng(0).normal(size=(2, 9)).tolist(), [1.0, 2.0, 3.0, 4.0, 6.0]
    folder = str(write_scores(tmp_path / "nine", dict(zip(("vanilla", "fire"), nine, strict=True))))
    result = main(["aggregate", folder, "--output", str(tmp_path / "out")])
    assert all(np.isnan(estimate[1:]).all() for of in result.values() for estimate in of)
    shown = capsys.readouterr().out
    assert "– : fewer than 10 runs" in shown and " to " not in shown.split("score:")[0]
    folders = [str(write_scores(tmp_path / name, {"fire": five})) for name in ("a", "b")]
    assert main(["aggregate", *folders, "--output", str(tmp_path / "out")])["fire"][0].low > 1


@pytest.mark.parametrize(
    ("scores", "reference", "better", "expected"),
    [
        ({"reset": [1.0], "fire": [2.0]}, [], "fire", 1),  # one seed has no interval; the first, for vanilla
        ({"vanilla": [1.0, 2.0], "fire": [2.0, 3.0, 4.0]}, ["--reference", "fire"], "vanilla", 0.5 / 6),
    ],
)
def test_methods_are_compared_with_the_reference_for_any_numbers_of_seeds(
    tmp_path, scores, reference, better, expected
):
    result = main(["aggregate", str(write_scores(tmp_path / "a", scores)), "--output", str(tmp_path), *reference])
    other = next(method for method in scores if method != better)
    assert result[better][1].value == pytest.approx(expected) and np.isnan(result[better][1].low)
    assert np.isnan(result[other][1].value)


@pytest.mark.parametrize("name", ["vanilla\x1b[2J", "=cmd|calc!A0", "../up"])
def test_names_in_a_file_steer_neither_the_terminal_nor_a_spreadsheet(tmp_path, capsys, name):
    folder = write_scores(tmp_path / "task", {name: [1.0, 2.0], "fire": [2.0, 3.0]})
    with pytest.raises(SystemExit):
        main(["aggregate", str(folder), "--output", str(tmp_path / "out")])
    shown = "".join(capsys.readouterr())
    assert f"results.csv: {name!r} is not a valid name" in shown and "\x1b" not in shown
    assert not (tmp_path / "out").exists()


def test_other_words_of_a_file_do_not_steer_the_terminal(tmp_path, capsys):
    write(tmp_path / "task", "method,seed,final", "\x1b[2J,0,1")
    write(tmp_path / "other", "method,seed,\x1b[2J", "fire,0,1")
    for folder in ("task", "other"):
        with pytest.raises(SystemExit):
            main(["aggregate", str(tmp_path / folder)])
    shown = "".join(capsys.readouterr())
    assert shown.count("\\x1b[2J") == 1 and "\x1b" not in shown


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path):
    folder = write_scores(tmp_path / "lr=1:2", {"vanilla": [3.0, 4.0]})
    result = main(["aggregate", f"{folder}=0:20", f"{folder}=0:10", "--output", str(tmp_path / "out")])
    assert result["vanilla"][0].value == pytest.approx((0.2 + 0.3) / 2)
    assert main(["aggregate", str(folder), "--output", str(tmp_path / "out")])["vanilla"][0].value == 3.5


def test_a_method_that_is_left_out_may_have_gaps(tmp_path):
    folder = write(tmp_path / "task", "method,seed,final", "vanilla,0,1.0", "dash,0,", "fire,0,3.0")
    words = ["aggregate", str(folder), "--output", str(tmp_path / "out")]
    assert list(main([*words, "--methods", "fire", "vanilla"])) == ["fire", "vanilla"]


def test_scores_of_several_tasks_want_a_scale(tmp_path, capsys):
    folders = [str(write(tmp_path / name, "method,seed,final,since", "fire,0,3.0,2.0")) for name in ("a", "b")]
    main(["aggregate", *folders, "--output", str(tmp_path / "out"), "--measure", "since"])
    assert "without =LOW:HIGH the task with the largest scores counts most" in capsys.readouterr().out


@pytest.mark.parametrize("factor, shown", [(1, "0.933"), (1000, "933.3")])
def test_digits_suit_what_is_shown(factor, shown, tmp_path, capsys):
    scores = [0.9 * factor, 0.9 * factor, 0.9 * factor, 1.0 * factor, 12 * factor]
    main(["aggregate", str(write_scores(tmp_path / "task", {"fire": scores})), "--output", str(tmp_path / "out")])
    assert capsys.readouterr().out.splitlines()[3].split()[3] == shown


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere"], "results.csv is not there: give a folder of lightning-fire compare"),
        (["good=1"], "good=1 is not a folder; or else after = there must be LOW:HIGH, got '1'"),
        (["good=2:2"], "LOW must be less than HIGH"),
        (["good=nan:2"], "LOW must be less than HIGH"),
        (["starts"], "is not of a comparison by method and seed: its columns are start, method, seed"),
        (["good", "--measure", "average"], "has no column average; --measure can be final"),
        (["missing"], "fire has no finite score with seed 1 in missing (--methods leaves it out)"),
        (["twice"], "twice/results.csv has fire seed 0 twice"),
        (["good", "good=0:10"], "good has no =LOW:HIGH, and other tasks have"),
        (["other", "--measure", "final"], "--measure can be nothing here"),
        (
            ["good", "fewer"],
            "vanilla must have as many seeds in each task (--methods leaves it out): 2 in good, 1 in fewer",
        ),
        (["good", "others"], "no method is in all of the tasks"),
        (["good", "others", "--methods", "vanilla"], "others has no vanilla; it has dash"),
        (["good", "--reference", "dash"], "--reference dash is not one of the methods: vanilla fire"),
    ],
)
def test_errors(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_scores(Path("good"), {"vanilla": [1, 2], "fire": [3, 4]})
    write_scores(Path("fewer"), {"vanilla": [1], "fire": [3, 4]})
    write_scores(Path("others"), {"dash": [1, 2]})
    write(Path("missing"), "method,seed,final", "vanilla,0,1.0", "fire,0,1.0", "fire,1,")
    write(Path("starts"), "start,method,seed,final", "a,fire,0,1.0")
    write(Path("twice"), "method,seed,final", "fire,0,1.0", "fire,0,2.0")
    write(Path("other"), "method,seed,sfe", "fire,0,1.0")
    with pytest.raises(SystemExit):
        main(["aggregate", *words])
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()
