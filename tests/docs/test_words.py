"""Phrases that this project avoids, each with what to write instead, in pages, help texts, messages and the console."""

import json
import re

import pytest

import commands
import stage as stages
from pages import OTHERS, PAGES, ROOT, name

AVOIDED = {
    r"(?:^|[.;:|] )(?:\*\*)?Who (?!are)": "name the subject: a client that …, callers",
    r"\b(?:who|some|every|any|no)(?:ever|body)\b": "name the subject: callers, clients, operators",
    r"\bas it comes\b": "by default",
    r"\b(?:go|goes|went|going) by\b": "uses, follows, relies on",
    r"\bbut for\b": "except",
    r"\b(?:is|are|was|were|be|been) told\b": "is notified, is reported",
    r"\bof (?:its|their) own\b": "separate, own",
    r"\bstands? here\b": "is here",
    r"\blets? (?:\w+ )?in\b": "accepts, admits",
    r"\bheld to\b": "must meet, is checked against",
    r"\bwhat (?:is left|comes of|has been said)\b": "the remaining …, the effect of …",
    r"\b(?:it|they|which|that) used to\b": "nothing: history belongs to CHANGELOG.md",
}
# Where such a phrase is right: the file, and the words around it.
ALLOWED = {}


def avoided_in(place, text):
    text = re.sub(r"\s+", " ", text.replace("\n\n", " ¶ "))
    for pattern, better in AVOIDED.items():
        for found in re.finditer(pattern, text, re.I if "Who" not in pattern else 0):
            around = text[max(0, found.start() - 40) : found.end() + 40]
            if not any(words in around for words in ALLOWED.get(place, ())):
                yield f"{place}: {found[0].strip()!r} in {around!r}; better: {better}"


def strings(source, is_script=False):
    """The string literals of a file of Rust or JavaScript, without comments."""
    code = re.sub(r"\\\n\s*", "", re.sub(r"^\s*(?://|/?\*).*$", "", source, flags=re.M))
    quotes = "\"`'" if is_script else '"'
    return re.findall("|".join(rf"{quote}(?:[^{quote}\\]|\\.)*{quote}" for quote in quotes), code)


def sources(*patterns):
    listed = (path for pattern in patterns for path in ROOT.glob(pattern) if "target" not in path.parts)
    return sorted(path for path in listed if not {"tests", "benches", "examples", "node_modules"} & {*path.parts, path.stem})


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name)
def test_pages(page):
    assert list(avoided_in(name(page), page.read_text())) == []


def helps(path):
    names, _, _ = commands.help_of(path)
    yield path
    for command in sorted(names - {"help"}):
        yield from helps((*path, command))


@pytest.mark.parametrize("program", commands.PROGRAMS)
def test_help_texts(program):
    assert [wrong for path in helps((program,)) for wrong in avoided_in(" ".join(path), commands.text_of_help(path))] == []


@pytest.mark.parametrize("folder", ["router", "config", "simulator", "research", "gpu-bench", "sim-engine"])
def test_messages(folder):
    wrong = []
    for path in sources(f"{folder}/**/*.rs"):
        wrong += avoided_in(name(path), " ¶ ".join(strings(path.read_text().split("#[cfg(test)]")[0])))
    assert wrong == []


# What a description does not begin with: a pronoun, or a clause in place of a noun.
NO_BEGINNING = r"(?:It|Its|They|Their|That|Those|Such|So much|So many|What|Who|…|[a-z](?!\w*[`_']))\b|…"


def described(document, path=""):
    """Each title, summary and description of a JSON document, with its path."""
    for key, value in document.items() if isinstance(document, dict) else enumerate(document):
        if isinstance(value, (dict, list)):
            yield from described(value, f"{path}/{key}")
        elif key in ("description", "summary") and isinstance(value, str):
            yield f"{path}/{key}", value


def wrong_in_descriptions(document):
    for path, text in described(document):
        yield from avoided_in(path, text)
        if re.match(NO_BEGINNING, text):
            yield f"{path}: begins with {text[:40]!r}; name the subject"


def test_the_admin_api(stage):
    stage.router()
    document = stages.admin("/admin/v1/openapi.json")
    assert len(list(described(document))) > 500
    assert list(wrong_in_descriptions(document)) == []


def test_the_charts_schema():
    schema = json.loads((ROOT / "deploy/helm/tailroute/values.schema.json").read_text())
    assert len(list(described(schema))) > 100
    assert list(wrong_in_descriptions(schema)) == []


def test_the_console():
    wrong = []
    for path in sources("router/admin/console/**/*.js", "router/admin/console/**/*.html"):
        text = path.read_text() if path.suffix == ".html" else " ¶ ".join(strings(path.read_text(), is_script=True))
        wrong += avoided_in(name(path), text)
    assert wrong == []
