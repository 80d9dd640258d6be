"""The part of the chart's values.schema.json that is the router's own: `config`, as `tailroute schema` describes it.

    scripts/deploy schema     writes it anew
"""

import copy
import json
import re

from rendered import CHART, ROUTER, run

FILE = CHART / "values.schema.json"

# What follows from the pod, so that the chart sets it: `templates/_config.tpl`.
CHARTS_OWN = {
    "Server": None,
    "Admin": ["listen", "tokens_file", "open_metrics"],
    "EndpointPicker": ["listen"],
    "Admission": ["keys_file"],
    "Index": ["snapshot_path"],
    "Limits": ["drain_delay_s", "drain_timeout_s"],
}


def section(name):
    """The section that the schema calls by this name: `EndpointPicker` is `[endpoint_picker]`."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


def definitions():
    """`$defs` of the chart's schema: the router's, less what is the chart's own."""
    done = run(ROUTER, "schema")
    assert done.returncode == 0, done.stderr
    whole = json.loads(done.stdout)
    defs = copy.deepcopy(whole["$defs"])
    config = {key: whole[key] for key in ("description", "type", "additionalProperties", "properties")}
    config["anyOf"] = [{"required": ["workers"]}, {"required": ["discovery"]}]
    config["properties"]["workers"]["minItems"] = 1
    for name, keys in CHARTS_OWN.items():
        if keys is None:
            del defs[name]
            del config["properties"][section(name)]
            continue
        for key in keys:
            del defs[name]["properties"][key]
    for described in config["properties"].values():
        # Defaults are those of docs/configuration.md; the chart's own would stand among them here.
        described.pop("default", None)
    return {"Config": config, **defs}


def main():
    schema = json.loads(FILE.read_text())
    schema["$defs"] = definitions()
    FILE.write_text(json.dumps(schema, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
