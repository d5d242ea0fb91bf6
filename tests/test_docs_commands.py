"""Each shell line and each YAML block of the documentation is one that the programs take, as a reader copies it."""

import re
import shlex

import pytest
from pages import PAGES, blocks_of, pages_with
from shell_lines import check, check_yaml, commands_of

LANGUAGES = {"python", "bash", "yaml", "text", "bibtex"}  # the code in others would not be tested
IN_TEXT = re.compile(r"(?<!`)`((?:lightning-fire|python|make|pip install) [^`\n…]+)`")


def test_every_block_has_a_language_that_is_tested():
    blocks = [(page.name, block) for page in PAGES for block in blocks_of(page)]
    assert len(blocks) > 90
    assert not [(page, block.code) for page, block in blocks if block.language not in LANGUAGES]


def write_files(page, folder, monkeypatch):
    """Write what a page tells its reader to put into files: its first Python and YAML blocks."""
    for name, language in (("mine.py", "python"), ("more.yaml", "yaml")):
        if f"`{name}`" in page.read_text() and (blocks := blocks_of(page, language)):
            (folder / name).write_text(blocks[0].code)
            monkeypatch.syspath_prepend(folder)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("page", pages_with("bash", "yaml"), ids=lambda page: page.stem)
def test_blocks_are_taken(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path, monkeypatch)
    for block in blocks_of(page, "bash", "yaml"):
        try:
            if block.language == "yaml":
                check_yaml(block.code)
                continue
            for words in commands_of(block.code):
                check(words, monkeypatch)
        except SystemExit:
            pytest.fail(f"{page.name}: {capsys.readouterr().err}\n{block.code}")


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if IN_TEXT.search(page.read_text())], ids=lambda page: page.stem
)
def test_commands_in_sentences_are_taken(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path, monkeypatch)
    for command in dict.fromkeys(IN_TEXT.findall(page.read_text())):
        words = shlex.split(command.partition(r"\|")[0])
        if len(words) > 2:  # `lightning-fire compare` alone names a command
            try:
                check(words, monkeypatch)
            except SystemExit:
                pytest.fail(f"{page.name}: {command}: {capsys.readouterr().err}")


@pytest.mark.parametrize(
    "code",
    [
        "lightning-fire compare quick_start --method fire",
        "lightning-fire compare quick_start --methods fires",
        "lightning-fire compare quick_start --set trainer.max_epoch=3",
        "lightning-fire sweep quick_start --method fire --measure",
        "lightning-fire fit no_such_recipe",
        "lightning-fire fit quick_start max_epochs 8",
        "lightning-fire diagnose a --no-such-option",
        "lightning-fire learn quick_start",
        "make no-such-target",
        "pip install 'lightning-fire[none]'",
        "python -m studies.memory --no-such-option",
        "python examples/none.py",
        "rm x",
    ],
)
def test_wrong_commands_are_found(code, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SystemExit, ValueError, AssertionError, OSError)):
        [check(words, monkeypatch) for words in commands_of(code)]


@pytest.mark.parametrize(
    "code",
    [
        "trainer: {max_epoch: 3}",
        "methods: {a: {class_path: FIRECallback, init_args: {step: 3}}}",
        "shrink_and_perturb: {shrink: [0.3]}",
        "best: best",
    ],
)
def test_wrong_yaml_is_found(code, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((SystemExit, ValueError)):
        check_yaml(code)
