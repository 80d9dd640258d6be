"""Checks the links of every Markdown file of the tree and of the built book: `links.py BOOK`. Fails on a broken one."""

import html.parser
import pathlib
import re
import subprocess
import sys
import urllib.parse

from pages import MARKDOWN, PAGES, ROOT


def targets_of(tokens):
    for token in tokens:
        for child in token.children or []:
            yield from ((token.map[0] + 1, child.attrGet(a)) for a in ("href", "src") if child.attrGet(a))


def anchors_of(text):
    """The names that GitHub gives to headings, and those that are set by hand."""
    found, tokens = set(re.findall(r'<a id="([^"]+)"', text)), MARKDOWN.parse(text)
    for heading, inline in zip(tokens, tokens[1:]):
        if heading.type == "heading_open":
            words = "".join(c.content for c in inline.children if c.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            copies = (f"{slug}-{n}" for n in range(1, 100))
            found.add(slug if slug not in found else next(c for c in copies if c not in found))
    return found


class Html(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id") or attributes.get("name"))
        link = attributes.get("href") or attributes.get("src")
        if link and tag in ("a", "img"):
            self.links.append(link)


def broken(file, link, anchors):
    """Why a link does not work, if it does not."""
    url = urllib.parse.urlsplit(link)
    if url.scheme or url.netloc:
        return None
    target = (file.parent / urllib.parse.unquote(url.path)).resolve() if url.path else file
    if not target.exists():
        return f"no such file: {link}"
    fragment = urllib.parse.unquote(url.fragment)
    if fragment and target.suffix == file.suffix and fragment not in anchors(target):
        return f"no such anchor: {link}"
    return None


def in_markdown():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {path: path.read_text() for path in (ROOT / line for line in listed.stdout.splitlines()) if path.exists()}
    anchors = {path: anchors_of(text) for path, text in texts.items()}
    for path, text in texts.items():
        for line, link in targets_of(MARKDOWN.parse(text)):
            if why := broken(path, link, lambda target: anchors.get(target, ())):
                yield f"{path.relative_to(ROOT)}:{line}: {why}"


def in_book(book):
    pages = {path: Html(path.read_text()) for path in book.rglob("*.html") if path.name not in ("print.html", "toc.html", "404.html")}
    for path, page in pages.items():
        for link in page.links:
            if why := broken(path, link, lambda target: pages[target].ids):
                yield f"{path.relative_to(book)}: {why}"


def missing_from_summary():
    summary = ROOT / "docs/SUMMARY.md"
    listed = {(summary.parent / link).resolve() for _, link in targets_of(MARKDOWN.parse(summary.read_text()))}
    yield from (f"{page.relative_to(ROOT)}: not in docs/SUMMARY.md" for page in PAGES[1:] if page not in listed)


def main(book):
    wrong = [*in_markdown(), *in_book(pathlib.Path(book).resolve()), *missing_from_summary()]
    print(*wrong, sep="\n", file=sys.stderr) if wrong else print("book: every link leads somewhere")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1])
