"""Every block of commands runs, unless a comment before it says why not; then its programs, flags and targets are checked.

    <!-- not-run: needs a GPU -->      the reason why the next block is only checked
    <!-- background -->                the next block does not end by itself; it runs until the next router, or the page's end
    <!-- setup: COMMANDS -->           what a reader has at this point, run before the next block
    <!-- output -->                    the next block is a part of what the commands before it print; … stands for anything
"""

import re
import subprocess

import pytest

import commands
from pages import OTHERS, PAGES, blocks, inline_code, name

SHELL = ("sh", "bash", "console")
BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS = [block for block in BLOCKS if block.language in SHELL]


def runnable(page):
    return [b for b in BLOCKS if b.page == page and ("output" in b.marks or (b.language in SHELL and "not-run" not in b.marks))]


def matches(expected, printed):
    """Whether the lines of `expected` are among those of `printed`, in order."""
    lines = iter(printed.replace("\r", "").splitlines())
    patterns = (".*".join(map(re.escape, line.rstrip().split("…"))) for line in expected.splitlines() if line.strip() != "…")
    return all(any(re.fullmatch(pattern, line.rstrip()) for line in lines) for pattern in patterns)


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name)
def test_the_commands_of_a_page_run_in_order(page, stage):
    found = runnable(page)
    if not any("background" in block.marks and "tailroute serve" in block.text for block in found):
        stage.router()
    for block in BLOCKS:
        if block.page != page:
            continue
        if file := re.match(r"# ([\w.-]+\.(?:toml|yaml))\n", block.text):
            (stage.folder / file[1]).write_text(block.text)
        if block not in found:
            continue
        if "setup" in block.marks:
            stage.run(block.marks["setup"])
        if "output" in block.marks:
            assert matches(block.text, stage.printed), f"{block}: {stage.printed}"
        elif "background" in block.marks:
            stage.background(block.text)
        else:
            stage.run(block.text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_has_a_language(page):
    assert [str(block) for block in BLOCKS if block.page == page and block.language is None] == []


def test_reasons_are_given_for_commands_alone():
    assert [str(b) for b in BLOCKS if "not-run" in b.marks and (b.language not in SHELL or not b.marks["not-run"])] == []


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_a_block_is_valid(block):
    parsed = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    assert parsed.returncode == 0, parsed.stderr
    assert [wrong for command in commands.split(block.text) for wrong in commands.problems(command)] == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name)
def test_commands_in_sentences_exist(page):
    wrong = []
    for line, code in inline_code(page):
        for command in commands.split(code):
            wrong += [f"{name(page)}:{line}: {problem}" for problem in commands.problems(command)]
    assert wrong == []
