"""Plain English: words with a plainer or standard alternative do not occur in pages, the package and its scripts."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BETTER = {
    "anew": "from scratch, again, re-initialized",
    "told apart, tell apart, tells apart": "distinguish",
    "nobody, somebody, whoever": "none, a user, any caller",
    "in the place of": "instead of",
    "go on, goes on, going on, went on": "continue",
    "made good, make good, makes good": "recover",
    "obstacle, obstacles": "reason",
    "likewise": "repeat the meaning",
    "new beginning, new beginnings": "re-initialization",
    "running average, running averages": "exponential moving average (EMA)",
    "share of the units, share of units, share of weights, share of neurons": "fraction",
    "numbers of an input, numbers of the input, numbers of an image": "input dimension",
    "one's own": "your own",
    "what the network says, what a network says, what the model says": "output, prediction",
    "return what": "say what is returned",
}
KINDS = {".md", ".py", ".yaml"}
WORDS = {re.compile(rf"{words}\b".replace(" ", r"\s+")): words for all_ in BETTER for words in all_.split(", ")}
ALTERNATIVE = {words: better for all_, better in BETTER.items() for words in all_.split(", ")}


def found_in(text: str) -> Iterator[str]:
    """Yield the line, the words and their alternative."""
    text = text.lower()
    for pattern, words in WORDS.items():
        for match in pattern.finditer(text):  # begins with a letter, for a fast search: \b would be slow
            if not text[match.start() - 1 : match.start()].isalnum():
                yield f"{text.count(chr(10), 0, match.start()) + 1}: {words!r}, better: {ALTERNATIVE[words]}"


def test_pages_and_package_use_plain_words():
    folders = ("docs", "lightning_fire", "recipes", "examples", "studies", "benchmarks")
    files = [
        ROOT / "README.md",
        *(path for name in folders for path in (ROOT / name).rglob("*") if path.suffix in KINDS),
    ]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in found_in(path.read_text())]
    assert not found, "\n".join(found)


def test_words_are_found_across_lines_and_in_any_case():
    assert list(found_in("Models are\ntrained Anew and go\n  on, if they cargo on.")) == [
        "2: 'anew', better: from scratch, again, re-initialized",
        "2: 'go on', better: continue",
    ]
