"""The stages of .ci/run, with a `make` that only prints its arguments."""

import os
import re
import subprocess

import pytest

from pages import ROOT


@pytest.fixture
def ci(tmp_path):
    make = tmp_path / "make"
    make.write_text('#!/bin/sh\necho "made $* ${SECONDS_EACH-}"\n[ "$1" != "${FAIL-}" ]\n')
    make.chmod(0o755)

    def run(*arguments, **environment):
        path = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.run([ROOT / ".ci/run", *arguments], env={**os.environ, "PATH": path, **environment}, capture_output=True, text=True)

    return run


def made(done):
    return re.findall(r"^made (\S+)", done.stdout, re.M)


def test_without_arguments_all_stages_run_in_the_order_of_the_list(ci):
    stages = [line.split()[0] for line in ci("--list").stdout.splitlines()]
    done = ci()
    assert done.returncode == 0
    assert re.findall(r"^=== (\w+)$", done.stdout, re.M) == stages
    assert made(done)[:3] == ["lint", "audit", "test"] and made(done)[-1] == "fuzz"
    assert "made fuzz 30" in done.stdout


def test_named_stages_run_alone_and_are_timed(ci):
    done = ci("lint", "deploy")
    assert made(done) == ["lint", "test-deploy"]
    assert re.search(r"^stage +time\nlint +\d+ s\ndeploy +\d+ s\nall +\d+ s$", done.stdout, re.M)


def test_a_stage_that_fails_ends_the_run(ci):
    done = ci("lint", "audit", "test", FAIL="audit")
    assert done.returncode != 0
    assert made(done) == ["lint", "audit"]


def test_an_unknown_stage_is_refused_before_any_runs(ci):
    done = ci("lint", "nonsense")
    assert (done.returncode, made(done)) == (2, [])
    assert "no stage is called 'nonsense'" in done.stderr and "replicas" in done.stderr
