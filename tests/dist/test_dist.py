"""What `make dist` has made, installed as a user would, and used."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request

import pytest

DIST = pathlib.Path(os.environ["TAILROUTE_DIST"])
VERSION = os.environ["TAILROUTE_VERSION"]
PROGRAMS = ["tailroute", "gpu-bench", "sim-engine"]
LIMIT_MB = 30


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def only(pattern):
    found = list(DIST.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def clean():
    """The environment without settings of a router."""
    return {key: value for key, value in os.environ.items() if not key.startswith("TAILROUTE_")}


@contextlib.contextmanager
def started(*command):
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True, env=clean())
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def fleet(programs):
    """Two simulated engines and a router in front, all from one folder; the router's address."""
    with contextlib.ExitStack() as stack:
        workers = []
        for _ in range(2):
            engine = stack.enter_context(started(programs / "sim-engine", "--listen", "127.0.0.1:0", "--json"))
            workers += ["--worker", json.loads(engine.stdout.readline())["url"]]
        data, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        stack.enter_context(started(programs / "tailroute", "serve", "--listen", data, "--admin", admin, *workers))
        ready_by = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{admin}/readyz", timeout=5):
                break
            assert time.monotonic() < ready_by, "the router is not ready"
            time.sleep(0.02)
        yield data


def routed(address):
    """The worker that a chat completion was sent to, as curl shows it."""
    body = json.dumps({"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2})
    url = f"http://{address}/v1/chat/completions"
    answer = run("curl", "-sSi", url, "-H", "content-type: application/json", "-d", body)
    assert answer.startswith("HTTP/1.1 200 "), answer
    return re.search(r"(?mi)^x-tailroute-worker: (\S+)\r?$", answer).group(1)


def versions(folder):
    for program in PROGRAMS:
        assert run(folder / program, "--version") == f"{program} {VERSION}\n"


def test_pip_install_takes_a_user_to_a_routed_request(tmp_path, capsys):
    run(sys.executable, "-m", "venv", tmp_path)
    begun = time.monotonic()
    run(tmp_path / "bin/pip", "install", "--no-index", "--disable-pip-version-check", only("tailroute-*.whl"))
    installed = time.monotonic()
    with fleet(tmp_path / "bin") as address:
        assert routed(address).startswith("127.0.0.1:")
        ended = time.monotonic()
    versions(tmp_path / "bin")
    with capsys.disabled():
        print(f"\npip install: {installed - begun:.1f} s; to the first routed request: {ended - begun:.1f} s")


def test_the_wheel_names_licence_and_materials():
    names = run(sys.executable, "-m", "zipfile", "-l", only("tailroute-*.whl"))
    assert ".dist-info/licenses/LICENSE" in names
    assert f".dist-info/sboms/tailroute-{VERSION}.cdx.json" in names


@pytest.fixture(scope="session")
def tarball(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tarball")
    run("tar", "-xzf", only("tailroute-*-linux.tar.gz"), "-C", folder)
    (top,) = folder.iterdir()
    return top


def test_the_tarball_holds_what_a_machine_needs(tarball):
    versions(tarball / "bin")
    found = {str(file.relative_to(tarball)) for file in tarball.rglob("*") if file.is_file()}
    assert {
        "LICENSE",
        "completions/tailroute.bash",
        "completions/tailroute.fish",
        "completions/tailroute.zsh",
        "tailroute.example.toml",
        "tailroute.service",
        "tailroute.toml",
    } <= found
    run(tarball / "bin/tailroute", "check", "--no-env", tarball / "tailroute.toml")
    with fleet(tarball / "bin") as address:
        routed(address)


def test_the_router_is_small(tarball):
    assert (tarball / "bin/tailroute").stat().st_size <= LIMIT_MB * 10**6


@pytest.fixture(scope="session")
def deb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deb")
    run("dpkg-deb", "--extract", only("tailroute_*.deb"), folder)
    return folder


def test_the_debian_package_holds_what_a_service_needs(deb):
    versions(deb / "usr/bin")
    run(deb / "usr/bin/tailroute", "check", "--no-env", deb / "etc/tailroute/tailroute.toml")
    with fleet(deb / "usr/bin") as address:
        routed(address)


def test_the_debian_package_says_what_it_needs(tmp_path):
    package = only("tailroute_*.deb")
    field = {name: run("dpkg-deb", "--field", package, name).strip() for name in ["Version", "Depends"]}
    assert field["Version"] == VERSION
    assert re.fullmatch(r"libc6 \(>= 2\.\d+\), libgcc-s1", field["Depends"])
    run("dpkg-deb", "--control", package, tmp_path)
    assert (tmp_path / "conffiles").read_text() == "/etc/tailroute/tailroute.toml\n"
    for script in ["postinst", "prerm", "postrm"]:
        run("sh", "-n", tmp_path / script)
        assert os.access(tmp_path / script, os.X_OK)


def test_systemd_understands_the_packaged_unit(deb, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    text = (deb / "usr/lib/systemd/system/tailroute.service").read_text()
    assert "ExecStart=/usr/bin/tailroute serve --config /etc/tailroute/tailroute.toml\n" in text
    unit = tmp_path / "tailroute.service"
    unit.write_text(text.replace("/usr/bin/tailroute", str(deb / "usr/bin/tailroute")))
    run("systemd-analyze", "verify", unit)


def test_all_packages_hold_the_same_programs(tarball, deb, tmp_path):
    run(sys.executable, "-m", "zipfile", "-e", only("tailroute-*.whl"), tmp_path)
    scripts = tmp_path / f"tailroute-{VERSION}.data/scripts"
    for program in PROGRAMS:
        sums = {hashlib.sha256((folder / program).read_bytes()).hexdigest() for folder in [scripts, tarball / "bin", deb / "usr/bin"]}
        assert len(sums) == 1, program


def test_the_chart_is_packed_with_this_version():
    with tarfile.open(DIST / f"tailroute-{VERSION}.tgz") as chart:
        text = chart.extractfile("tailroute/Chart.yaml").read().decode()
    assert re.search(rf"(?m)^version: {re.escape(VERSION)}$", text)
    assert re.search(rf"(?m)^appVersion: \"?{re.escape(VERSION)}\"?$", text)


def test_the_bill_of_materials_is_valid_and_leaves_tests_out():
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = only("*.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    names = {component["name"] for component in json.loads(text)["components"]}
    assert {*PROGRAMS, "hyper", "nalgebra", "zeromq"} <= names
    assert not names & {"criterion", "proptest", "tailroute-e2e"}


def test_the_sums_are_of_all_files():
    lines = dict(reversed(line.split("  ")) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    assert set(lines) == {file.name for file in DIST.iterdir()} - {"SHA256SUMS"}
    for name, sum_ in lines.items():
        assert hashlib.sha256((DIST / name).read_bytes()).hexdigest() == sum_, name
