"""The published package: one version, all files, valid extras and commands."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lightning_fire

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

ROOT = Path(__file__).parents[1]
PACKAGE, RECIPES = ROOT / "lightning_fire", ROOT / "recipes"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def files_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def test_the_version_is_one():
    version = PROJECT["version"]
    installed = importlib.metadata.version("lightning-fire")
    assert installed == version, "installed before the version changed: pip install -e ."
    assert lightning_fire.__version__ == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    released = re.findall(r"^## (\d\S*) – (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0][0] == version
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]) == released[0][1]


def test_the_version_is_looked_up_when_it_is_asked_for():
    code = "import sys, lightning_fire; print(*{'importlib.metadata', 'torch', 'email'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == ""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The content of the wheel, in a folder."""
    source, built, content = (tmp_path_factory.mktemp(name) for name in ("source", "built", "content"))
    for folder in (PACKAGE, RECIPES):
        shutil.copytree(folder, source / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(built)!r})"
    result = subprocess.run([sys.executable, "-c", code], check=True, cwd=source, capture_output=True, text=True)
    assert "Package would be ignored" not in result.stdout + result.stderr
    (file,) = built.iterdir()
    shutil.unpack_archive(file, content, "zip")
    return content


def test_the_wheel_has_every_file_of_the_package_and_the_recipes(wheel):
    packed = {path.relative_to(wheel).as_posix() for path in files_of(wheel) if ".dist-info" not in str(path)}
    package = {path.relative_to(ROOT).as_posix() for path in files_of(PACKAGE)}
    recipes = {f"lightning_fire/{path.relative_to(ROOT).as_posix()}" for path in files_of(RECIPES)}
    assert packed == package | recipes and "lightning_fire/py.typed" in packed and len(recipes) > 20


@pytest.mark.slow
def test_recipes_of_the_wheel_have_short_names(wheel, tmp_path):
    (wheel / "recipes").mkdir()  # of another package
    command = [sys.executable, "-m", "lightning_fire", "recipe", "vision/gpu"]
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    printed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert printed == (RECIPES / "vision" / "gpu.yaml").read_text()


def test_the_source_distribution_has_every_folder_of_a_clone():
    listed = (ROOT / "MANIFEST.in").read_text()
    grafted = re.findall(r"^graft (\S+)", listed, re.MULTILINE)
    included = re.search(r"^include (.*)$", listed, re.MULTILINE)[1].split()
    assert all((ROOT / folder).is_dir() for folder in grafted)
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: what belongs to it is not known")
    listing = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT)
    automatic = {"pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE"}
    for name in listing.stdout.splitlines():
        top, _, rest = name.partition("/")
        known = top in {*grafted, "lightning_fire"} if rest else any(Path(top).match(p) for p in included)
        assert known or name in automatic, f"MANIFEST.in leaves out {name}"


def test_every_extra_that_is_named_exists():
    folders = (ROOT / "docs", PACKAGE, RECIPES, ROOT / "examples")
    texts = [*ROOT.glob("*.md"), *(path for folder in folders for path in files_of(folder))]
    named = {}
    for path in texts:
        if path.suffix in {".md", ".py", ".yaml", ".ipynb"}:
            for extras in re.findall(r"lightning-fire\[([\w,-]+)\]", path.read_text()):
                named |= dict.fromkeys(extras.split(","), path.relative_to(ROOT))
    extras = set(PROJECT["optional-dependencies"])
    assert len(named) >= 10
    assert {extra: str(path) for extra, path in named.items() if extra not in extras} == {}
    assert extras - set(named) == {"test", "docs", "dev"}, "an extra that no page and no message names"


def test_addresses_and_classifiers():
    assert all(address.startswith("https://") for address in PROJECT["urls"].values())
    minors = [int(found) for found in re.findall(r":: 3\.(\d+)", "\n".join(PROJECT["classifiers"]))]
    assert PROJECT["requires-python"] == f">=3.{min(minors)}"
    tested = re.findall(r'"3\.(\d+)"', (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert {int(minor) for minor in tested} == set(minors)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_commands_of_the_makefile(workflow):
    targets = re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE)
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    commands = "\n".join(step.get("run", "") for job in jobs for step in job["steps"])
    called = re.findall(r"\bmake ([\w-]+)", commands)
    assert called and set(called) <= set(targets)
    assert not re.search(r"\b(pip|pytest|ruff|mypy|mkdocs)\b", commands), "a step that a developer does not run"


def test_there_are_workflows():
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "publish"]


def test_one_version_of_ruff():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    revision = next(hook["rev"] for hook in hooks if hook["repo"].endswith("ruff-pre-commit"))
    assert f"ruff=={revision.removeprefix('v')}" in PROJECT["optional-dependencies"]["dev"]


@pytest.mark.parametrize("system, python", [("Linux", "bin/python"), ("Windows_NT", "Scripts/python")])
def test_commands_find_the_environment_of_the_system(system, python, tmp_path):
    words = ["make", "-n", "test", "dist", f"OS={system}", f"VENV={tmp_path.as_posix()}/venv"]
    try:
        result = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    except FileNotFoundError:
        pytest.skip("there is no make")
    assert f"venv/{python} -m pytest" in result.stdout and f"venv-build/{python} -m build" in result.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_paper_can_be_cited(page):
    """The BibTeX of the pages and `preferred-citation`, by which GitHub writes its own, name the same paper."""
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    (entry,) = re.findall(r"```bibtex\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    fields = dict(re.findall(r"^  (\w+) += \{(.*)\}", entry, re.MULTILINE))
    assert re.sub("[{}]", "", fields["title"]).replace("--", "–") == paper["title"]
    assert fields["author"].split(" and ") == [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]]
    assert fields["year"] == str(paper["year"]) and paper["conference"]["name"].startswith(fields["booktitle"])


def test_the_lanes_of_tests_leave_none_out():
    """The expressions of markers by which `make test`, `make test-all` and `make test-crash` choose."""
    chosen = dict(re.findall(r"^test(\S*):.*\n\t.*\$\(BIN\)/\$\(PYTEST\) -m \"(.*)\"$", MAKEFILE, re.MULTILINE))
    assert chosen == {"": "not slow and not crash", "-all": "not crash", "-crash": "crash or fuzz"}
    assert "make test-all\n" in (ROOT / ".ci" / "run").read_text()
    known = {re.split(r"\W", line)[0] for line in PYPROJECT["tool"]["pytest"]["ini_options"]["markers"]}
    assert {"slow", "crash", "fuzz"} <= known
