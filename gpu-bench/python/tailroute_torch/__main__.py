"""``python -m tailroute_torch``: the command line."""

from __future__ import annotations

import argparse
import sys

from . import measure, options
from .serve import command as serve

_EXAMPLES = """Examples:
  echo '{"cached_tokens": 1024, "uncached_tokens": 256, "repeat": 0}' | python -m tailroute_torch measure --shape tiny
  python -m tailroute_torch serve --shape llama-3-8b --port 8100
"""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="tailroute_torch",
        description="A real transformer with random weights, to measure and to serve.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(dest="command", required=True)
    told = {"measure": "time prefills, a line in and a line out", "serve": "serve it as an engine over HTTP"}
    for name, part in (("measure", measure), ("serve", serve)):
        command = commands.add_parser(name, help=told[name], description=part.__doc__)
        options.add_arguments(command)
        part.add_arguments(command)
        command.set_defaults(run=part.run)
    return root


def main() -> int:
    args = parser().parse_args()
    try:
        return args.run(args)
    except options.SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
