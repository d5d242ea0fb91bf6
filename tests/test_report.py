"""docs/report.md tells what the pages tell that it links, and its PDF links to the site."""

import csv
import re
import runpy

from pages import ROOT

REPORT = (ROOT / "docs" / "report.md").read_text()
WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def numbers_of(text):
    return text.replace("−", "-").replace("+", "")


def test_intervals_stand_on_the_pages_that_it_links():
    linked = {page for page in re.findall(r"\]\((\w+\.md)", REPORT)}
    pages = numbers_of(" ".join((ROOT / "docs" / page).read_text() for page in sorted(linked)))
    told = re.findall(r"\([-\d.]+\sto\s[-\d.]+\)", numbers_of(REPORT))
    assert len(told) >= 6
    for interval in told:
        low, high = (float(end) for end in interval.strip("()").split(" to "))
        fractions = f"({low / 100:.3f} to {high / 100:.3f})"  # points of a table of fractions
        assert interval in pages or fractions in pages, interval


def test_what_it_says_of_the_board_is_so():
    with (ROOT / "docs" / "board.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["gain"]]
    above = [row["task"] for row in rows if row["method"] == "fire" and float(row["gain_low"]) > 0]
    tasks = {row["task"] for row in rows}
    assert f"FIRE is shown to be above vanilla on {WORDS[len(above)]} of {WORDS[len(tasks)]} tasks" in " ".join(
        REPORT.split()
    )
    dqn = [row for row in rows if row["task"] == "reinforcement_learning"]
    (fire,) = [row for row in dqn if row["method"] == "fire"]
    first = fire["gain"] == max((row["gain"] for row in dqn), key=float)
    better = float(fire["gain_low"]) > 0 and float(fire["over_scratch_low"]) > 0
    assert ("FIRE is first, above vanilla and above a full reset" in REPORT) == (first and better)


def test_the_pdf_links_to_the_site():
    script = runpy.run_path(str(ROOT / "docs" / "report.py"))
    text = script["for_paper"](REPORT)
    assert "make report" not in text and "<!--" not in text
    links = re.findall(r"(?<!!)\[[^\]]*\]\(([^)]*)\)", text)
    assert links and all(link.startswith(script["SITE"]) for link in links)
