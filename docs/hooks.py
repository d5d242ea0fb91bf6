"""MkDocs hooks: pages from the repository's root, links out of docs/, GitHub's anchors, and formulas by KaTeX.

KATEX is the `dist` folder of KaTeX; without it formulas stay as TeX.
"""

import html
import json
import logging
import os
import posixpath
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks")
ROOT, KATEX = Path(__file__).parents[1], os.environ.get("KATEX")
INCLUDED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# pages that a search finds after the guide
LATER = re.compile(r"reference/|changelog|contributing|results|speed|theorems|claims|board_curves")
RENDER = (
    "const k = require(process.argv[1]), f = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify("
)
RENDER += "f.map(([tex, displayMode]) => k.renderToString(tex, {displayMode, strict: 'error', trust: false}))))"


def slug(heading: str, separator: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", separator)


def on_config(config: Any) -> None:
    """Set the anchors, and the styles of KaTeX."""
    config.mdx_configs["toc"]["slugify"] = slug
    config.extra_css += ["katex/katex.min.css"] if KATEX else []


def on_files(files: Any, config: Any) -> None:
    """Add the pages from the root of the repository."""
    for name, page in INCLUDED.items():
        text = re.sub(r"\]\((?![a-z]+:|#)", "](../", (ROOT / name).read_text()).replace("](../docs/", "](")
        text = re.sub(r"(?<![`(\[/])\bdocs/(\w+)\.md(?!`)", r"[docs/\1.md](\1.md)", text)
        files.append(File.generated(config, page, content=text))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links out of docs/ lead to the repository, and names in the index of the reference to their entries.

    The first cell of a row is no name: it says what for, or is the key of a recipe. A search finds the pages of the
    guide before those of `LATER`.
    """
    if LATER.match(page.file.src_uri):
        page.meta["search"] = {"boost": 0.2}
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.src_uri == "reference/index.md":
        name = r"(?<!\[)(?<!\n\| )(`(\w+)`)(?=[^\n]*\|$)"
        markdown = re.sub(name, r"[\1][lightning_fire.\2]", markdown, flags=re.MULTILINE)

    def address(link: re.Match[str]) -> str:
        path, hash_, anchor = link[1].partition("#")
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), path))
        if path in INCLUDED:
            path = posixpath.relpath(INCLUDED[path], posixpath.dirname(page.file.src_uri) or ".")
        elif path.startswith("docs/") and not path.endswith((".py", ".yaml")):
            return link[0]
        else:
            if not (ROOT / path).exists():
                log.warning(f"Doc file '{page.file.src_uri}' contains a link '{link[1]}', but there is no {path}.")
            path = f"{config.repo_url.rstrip('/')}/blob/main/{path}"
        return f"]({path}{hash_}{anchor})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", address, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Keep numbers and their spread together; typeset formulas: one that KaTeX does not know ends the build."""
    content = re.sub(r"(\d) (±|to) (?=[-+−\d])", "\\1\u00a0\\2\u00a0", content)
    pattern = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
    formulas = [(html.unescape(match[2]), match[1] == "div") for match in pattern.finditer(content)]
    if not (KATEX and formulas):
        return content
    command = ["node", "-e", RENDER, str(Path(KATEX, "katex.js").resolve())]
    done = subprocess.run(command, input=json.dumps(formulas), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"KaTeX: {done.stderr}")
    typeset = iter(json.loads(done.stdout))
    return pattern.sub(lambda _: next(typeset), content)


def on_post_build(config: Any) -> None:
    """Copy the styles and fonts of KaTeX."""
    if KATEX:
        ignored = shutil.ignore_patterns(
            "*.js", "*.mjs", "*.ttf", "*.woff", "katex.css", "katex-*", "contrib", "README*"
        )
        shutil.copytree(KATEX, Path(config.site_dir, "katex"), dirs_exist_ok=True, ignore=ignored)
