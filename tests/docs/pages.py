"""The pages of the documentation and their blocks of code."""

import dataclasses
import pathlib
import re

from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARKDOWN = MarkdownIt("commonmark").enable("table")
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.name != "SUMMARY.md")]
# Pages outside the book: what they name is checked, and their words.
OTHERS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "deploy").rglob("README.md"))]
MARK = re.compile(r"<!-- (not-run|background|setup|output)\b:?\s*(.*?)\s*-->", re.S)


@dataclasses.dataclass
class Block:
    """A block of code, with the marks in the comments right before it."""

    page: pathlib.Path
    line: int
    language: str | None
    text: str
    marks: dict[str, str]

    def __str__(self):
        return f"{name(self.page)}:{self.line}"


def name(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    marks = {}
    for token in MARKDOWN.parse(page.read_text()):
        if token.type == "html_block":
            marks.update(MARK.findall(token.content))
        elif token.type in ("fence", "code_block"):
            language = token.info.split()[0] if token.info else None
            yield Block(page, token.map[0] + 1, language, token.content, marks)
            marks = {}
        elif token.level == 0:
            marks = {}


def inline_code(page):
    for token in MARKDOWN.parse(page.read_text()):
        for child in token.children or []:
            if child.type == "code_inline":
                yield token.map[0] + 1, child.content
