"""Print the requirements of the installed tapeflow's extras, one a line: python tools/requirements.py test bench."""

import re
import sys
from importlib.metadata import requires


def extra(name):
    """The requirements of one extra, without those it shares with others by naming tapeflow itself."""
    marker = re.compile(rf"""extra == ['"]{name}['"]""")
    found = [line.split(";")[0].strip() for line in requires("tapeflow") or () if marker.search(line)]
    return [line for line in found if not line.startswith("tapeflow[")]


print("\n".join(line for name in sys.argv[1:] for line in extra(name)))
