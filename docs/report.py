"""docs/report.md as a PDF, with pandoc and Typst, which `make report` installs.

python docs/report.py build/report.pdf
"""

import argparse
import re
from pathlib import Path

DOCS = Path(__file__).parent
SITE = "https://lightning-fire.github.io/lightning-fire/"
LOOK = """#set page(paper: "a4", margin: (x: 2.2cm, y: 2.2cm), numbering: "1")
#set text(size: 10.5pt)
#set par(justify: true)
#set image(width: 75%)
#set table(stroke: none, inset: (x: 4pt, y: 2.5pt))
#show table: set text(size: 8.5pt)
#show table: set par(justify: false)
#show table.cell: set align(left)
#show figure: set block(breakable: true)
#show link: set text(fill: rgb("#8a3000"))
#let horizontalrule = line(length: 100%)
"""


def for_paper(text: str) -> str:
    """Return the page without its remark on the PDF and marks of scripts, with links to the site."""
    text = re.sub(r"<!-- .*? -->\n", "", text.replace(" As a PDF:\n`make report`.", ""))
    return re.sub(r"(?<!!)\[([^\]]*)\]\((\w+)\.md(#[\w-]*)?\)", rf"[\1]({SITE}\2/\3)", text)


def main(path: str) -> None:
    """Write the PDF."""
    import pypandoc
    import typst

    body = pypandoc.convert_text(for_paper((DOCS / "report.md").read_text("utf-8")), "typst", "gfm+tex_math_dollars")
    source = DOCS / "report.typ"
    source.write_text(LOOK + body, encoding="utf-8")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        typst.compile(str(source), output=path)
    finally:
        source.unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="file of the PDF")
    main(parser.parse_args().path)
