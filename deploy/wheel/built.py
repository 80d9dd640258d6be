#!/usr/bin/env python3
"""The cargo that scripts/dist gives to maturin: the program is built already, and `cargo rustc` answers with its path.

TAILROUTE_BUILT is the folder of the program, TAILROUTE_CARGO the cargo that answers everything else.
"""

import json
import os
import subprocess
import sys

CARGO = os.environ["TAILROUTE_CARGO"]


def option(name):
    return sys.argv[sys.argv.index(name) + 1]


if sys.argv[1] != "rustc":
    os.execvp(CARGO, [CARGO, *sys.argv[1:]])

manifest, program = os.path.realpath(option("--manifest-path")), option("--bin")
command = [CARGO, "metadata", "--locked", "--no-deps", "--format-version=1", "--manifest-path", manifest]
packages = json.loads(subprocess.check_output(command))["packages"]
package = next(package for package in packages if package["manifest_path"] == manifest)
path = os.path.join(os.environ["TAILROUTE_BUILT"], program)
artifact = {
    "reason": "compiler-artifact",
    "package_id": package["id"],
    "manifest_path": manifest,
    "target": next(target for target in package["targets"] if target["name"] == program and target["kind"] == ["bin"]),
    "profile": {"opt_level": "3", "debuginfo": 0, "debug_assertions": False, "overflow_checks": False, "test": False},
    "features": [],
    "filenames": [path],
    "executable": path,
    "fresh": True,
}
print(json.dumps(artifact))
print(json.dumps({"reason": "build-finished", "success": True}))
