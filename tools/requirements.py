"""Print the requirements of the installed tapeflow's extras, one a line: python tools/requirements.py test bench.

--conditional: those that are for some machines alone, with their conditions; otherwise those for all.
"""

import re
import sys
from importlib.metadata import requires


def extra(name, lines, conditional=False):
    """The requirements of one extra, without those it shares with others by naming tapeflow itself."""
    marker = re.compile(rf"""(?: and )?extra == ['"]{name}['"]""")
    found = []
    for line in lines:
        requirement, _, condition = line.partition(";")
        if marker.search(condition) and not requirement.startswith("tapeflow["):
            condition = marker.sub("", condition).strip()
            if bool(condition) == conditional:
                found.append(f"{requirement.strip()}; {condition}" if conditional else requirement.strip())
    return found


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--conditional"]
    lines = requires("tapeflow") or ()
    print("\n".join(line for name in names for line in extra(name, lines, "--conditional" in sys.argv)))
