"""The site of `make docs`: all pages in its navigation, all public names in its reference, no unknown messages."""

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
NOTEBOOKS = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.ipynb"))
LONG = re.compile(r"claims\.md|reference/.*")
FROM_ROOT = {"changelog.md", "contributing.md"}  # docs/hooks.py makes them


def leaves(nav):
    for entry in nav.values() if isinstance(nav, dict) else nav:
        if isinstance(entry, str):
            yield entry
        else:
            yield from leaves(entry)


def exported(package: Path) -> list[str]:
    """Return `__all__` of a package or module, read from its source; none if it has none."""
    for node in ast.parse(package.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def source_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_every_page_is_in_the_navigation_once():
    nav = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(nav) == sorted([*PAGES, *NOTEBOOKS, *FROM_ROOT])


def test_six_tabs_hold_at_most_56_pages():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    tabs = [tab for entry in nav for tab in entry]
    assert tabs == ["Start", "Guide", "Should I reset?", "Methods", "Evidence", "Reference and help"]
    assert len(list(leaves(nav))) <= 56


def test_the_readme_has_at_most_100_lines_and_ends_in_six_links():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 100
    assert 0 < len(re.findall(r"\]\(http", text.rpartition("\n## ")[2])) <= 6


@pytest.mark.parametrize("page", [page for page in PAGES if not LONG.fullmatch(page)])
def test_no_page_is_longer_than_200_lines(page):
    assert len((DOCS / page).read_text().splitlines()) <= 200


def test_every_public_name_is_in_the_reference():
    pages = [path.read_text() for path in (DOCS / "reference").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)}
    for name in shown:
        module = name if source_of(name).is_file() else name.rpartition(".")[0]
        assert source_of(module).is_file(), f"there is no {name}"
    for source in (ROOT / "lightning_fire").rglob("*.py"):
        module = ".".join(source.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module != "lightning_fire" and exported(source):
            assert module in shown, f"{module} has __all__, and no page of the reference"


def test_every_name_of_the_package_is_in_the_index_of_the_reference():
    rows = "\n".join(re.findall(r"^\|.*\|$", (DOCS / "reference/index.md").read_text(), re.MULTILINE))
    listed = re.findall(r"`(\w+)`", re.sub(r"(?m)^\| `\w+`", "|", rows))  # the first cell of the methods is a key
    assert sorted(listed) == sorted(exported(ROOT / "lightning_fire" / "__init__.py"))


def texts(tree: ast.AST):
    """Return all strings of a source, with … for what is filled in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def sources() -> list[str]:
    return [text for path in (ROOT / "lightning_fire").rglob("*.py") for text in texts(ast.parse(path.read_text()))]


def assert_of_the_package(messages: list[str]) -> None:
    printed = sources()
    for message in messages:
        pieces = [piece.strip() for piece in message.split("…") if len(piece) > 3]
        pattern = ".*".join(map(re.escape, pieces))
        assert any(re.search(pattern, text, re.DOTALL) for text in printed), message


def test_every_message_is_one_of_the_package():
    messages = re.findall(r"^\*\*`{1,2}(.+?)`{1,2}\*\*", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    assert len(messages) >= 20
    assert_of_the_package(messages)


def test_every_refusal_is_one_of_the_package():
    page = (DOCS / "refusals.md").read_text()
    sentences = re.findall(r"^\| .+? \| `{1,2}(.+?)`{1,2} \| .+ \|$", page, re.MULTILINE)
    assert len(sentences) == len(re.findall(r"^\| .+ \|$", page, re.MULTILINE)) - 6  # headings
    assert_of_the_package(sentences)


EVENT = ["acted at epoch", "weight matrices", ", preset "]
QUOTED = {  # words of messages in sentences of the guide
    "around_an_event.md": ["An event has no effect"],
    "detectors_and_forecasters.md": EVENT[1:],
    "fine_tuning_again.md": [*EVENT, "the old weights are small for this scale"],
    "language_in_phases.md": [*EVENT, "the old weights are small for this scale"],
    "selections.md": ["leaves out", ": no optimizer trains "],
}


@pytest.mark.parametrize("page", QUOTED)
def test_words_quoted_in_the_guide_are_those_of_messages(page):
    text, printed = " ".join((DOCS / page).read_text().split()), "\n".join(sources())
    for words in QUOTED[page]:
        assert words in text and words in printed, words
