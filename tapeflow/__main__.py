"""`python -m tapeflow info`."""

import argparse
import sys

from tapeflow import _info


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tapeflow")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, processor, libraries and a self-test, whose failure is status 1")
    parser.parse_args(arguments)
    text, sound = _info.report()
    print(text)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
