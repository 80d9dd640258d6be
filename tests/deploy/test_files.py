"""The Dockerfile and the systemd unit."""

import re
import shutil
import tomllib

import pytest

from rendered import ROOT, chart, router, run

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
UNIT = ROOT / "deploy" / "systemd" / "tailroute.service"


def instructions():
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_the_image_runs_as_the_pod_says():
    """What the chart leaves to the image: the program, and a user who is nobody."""
    last = dict(instructions())
    security = router(chart("standalone"))["securityContext"]
    assert last["USER"] == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert last["ENTRYPOINT"] == '["/usr/local/bin/tailroute"]'
    wanted = ", ".join(f'"{word}"' for word in router(chart("standalone"))["args"])
    assert last["CMD"] == f"[{wanted}]"
    ports = {str(port["containerPort"]) for port in router(chart("standalone"))["ports"]}
    assert set(last["EXPOSE"].split()) == ports


def test_the_image_is_built_from_what_the_repository_names():
    build = next(rest for name, rest in instructions() if name == "RUN")
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text())
    assert "cargo build --locked --profile dist" in build and cargo["profile"]["dist"]["strip"] == "symbols"
    rust = re.search(r"^ARG RUST=\S+/rust:([\d.]+)-", DOCKERFILE.read_text(), re.M).group(1)
    assert rust == cargo["workspace"]["package"]["rust-version"]
    for package in re.findall(r" -p (\S+)", build):
        assert run("cargo", "pkgid", "--manifest-path", ROOT / "Cargo.toml", "--offline", "-p", package).returncode == 0, package
    assert [rest for name, rest in instructions() if name == "FROM"][-1] == "scratch"


def test_the_unit_gives_a_stop_the_time_that_a_drain_takes():
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.M).group(1))
    drain = re.search(r"^drain_timeout_s = ([\d.]+)", (ROOT / "config/tailroute.example.toml").read_text(), re.M).group(1)
    assert stop >= float(drain) + 15


@pytest.fixture
def unit(tmp_path):
    """The unit, with a program that is on every machine in place of one that is installed later."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    text = UNIT.read_text()
    assert "ExecStart=/usr/local/bin/tailroute serve " in text
    file = tmp_path / "tailroute.service"
    file.write_text(text.replace("/usr/local/bin/tailroute", "/bin/true"))
    return file


def test_systemd_understands_the_unit(unit):
    done = run("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_finds_the_service_shut_in(unit):
    """2.0 is where its scale says that a service is well confined; 1.5 is what the network and the like cost."""
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit)
    assert done.returncode == 0, done.stdout
