"""What can be said of a command line without running it."""

import functools
import json
import os
import re
import shlex
import subprocess

import stage
from pages import ROOT

PROGRAMS = ("tailroute", "tailroute-lab", "sim-engine", "gpu-bench")


def split(text):
    """The commands of a script, each as its words; none where the text is not one."""
    text = re.sub(r"(^|\s)#.*$", "", text.replace("\\\n", " "), flags=re.M)
    lexer = shlex.shlex(text.replace("\n", ";\n"), posix=True, punctuation_chars="();<>|&")
    lexer.commenters = ""
    lexer.whitespace_split = True
    command, found = [], []
    try:
        for word in [*lexer, ";"]:
            if set(word) <= set("();|&"):
                found.append(command)
                command = []
            else:
                command.append(word)
    except ValueError:
        return []
    return [words for words in found if words]


def problems(words):
    while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] in ("sudo", "nice", "exec")):
        words = words[1:]
    if not words:
        return
    program = os.path.basename(words[0])
    if program in PROGRAMS and words[0] != f"scripts/{program}" and len(words) > 1:
        yield from of_program([program], words[1:])
    elif words[0] == "ctl":
        yield from of_program(["tailroute", "ctl"], words[1:])
    elif words[0] == "make":
        yield from (f"make {word}: no such target" for word in words[1:] if re.fullmatch(r"[a-z-]+", word) and word not in targets())
    elif words[0].startswith("scripts/") and not (ROOT / words[0]).is_file():
        yield f"{words[0]}: no such script"
    elif words[:2] in (["cargo", "test"], ["cargo", "bench"]):
        yield from of_cargo(words[2:])


@functools.cache
def text_of_help(path):
    return stage.program(*path, "--help")


@functools.cache
def help_of(path):
    text = text_of_help(path)
    listed = re.search(r"^Commands:\n((?:  .*\n|\n)+)", text, re.M)
    commands = {"help", *re.findall(r"^  ([a-z][\w-]*)", listed[1], re.M)} if listed else set()
    aliases = re.findall(r"\[alias(?:es)?: ([\w, -]+)\]", listed[1]) if listed else []
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))
    return commands | {a.strip() for names in aliases for a in names.split(",")}, flags, set(re.findall(r"(--[\w-]+)[ =]<", text))


def of_program(path, words):
    words = iter(words)
    for word in words:
        commands, flags, with_value = help_of(tuple(path))
        if word == "--" or (word == "…" and commands):
            return
        if word.startswith("--"):
            flag = word.split("=")[0]
            if flag not in flags | {"--help", "--version"}:
                yield f"{' '.join(path)}: no flag {flag}"
            if flag in with_value and "=" not in word:
                next(words, None)
        elif re.match(r"[<>]", word):
            next(words, None)
        elif commands and re.fullmatch(r"[a-z][a-z-]*", word):
            if word not in commands:
                yield f"{' '.join(path)}: no command {word}"
                return
            path = [*path, word]


@functools.cache
def targets():
    files = [ROOT / "Makefile", *(ROOT / "mk").glob("*.mk")]
    return {name for file in files for names in re.findall(r"^([a-z][a-z -]*):(?!=)", file.read_text(), re.M) for name in names.split()}


@functools.cache
def packages():
    """The packages of the workspace, and the laboratory's."""
    listed = [subprocess.run(["cargo", "metadata", "--no-deps", "--offline", "--locked", "--format-version=1"], cwd=folder,
                             capture_output=True, text=True, check=True) for folder in (ROOT, ROOT / "research")]
    return {package["name"]: package for one in listed for package in json.loads(one.stdout)["packages"]}


def of_cargo(words):
    """Packages, targets and the names of tests."""
    named = {flag: value for flag, value in zip(words, words[1:]) if flag in ("-p", "--test", "--bench")}
    package = named.get("-p")
    if package and package not in packages():
        yield f"cargo: no package {package}"
        return
    places = [packages()[package]] if package else packages().values()
    target = named.get("--test") or named.get("--bench")
    if target and not any(target == t["name"] for p in places for t in p["targets"]):
        yield f"cargo: no target {target}"
    before = words[: words.index("--")] if "--" in words else words
    for word in before:
        if re.fullmatch(r"[a-z][a-z_0-9:]*", word) and word not in named.values():
            folders = [os.path.dirname(p["manifest_path"]) for p in places]
            if subprocess.run(["grep", "-rqw", "--include=*.rs", "-e", word.split("::")[-1], *folders]).returncode:
                if subprocess.run(["grep", "-rq", "--include=*.rs", "-e", f"fn .*{word}", *folders]).returncode:
                    yield f"cargo: no test {word}"
