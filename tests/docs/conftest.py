import contextlib

import pytest

import stage as stages


@contextlib.contextmanager
def cleared(stage):
    try:
        yield stage
    finally:
        stage.stop()


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines")
    stages.network(folder)
    with cleared(stages.Stage(folder)) as stage:
        stage.engines()
        yield


@pytest.fixture
def stage(tmp_path, engines):
    with cleared(stages.Stage(tmp_path)) as made:
        yield made
