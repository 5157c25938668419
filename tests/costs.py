"""What tests cost: `tests/costs.json` holds seconds per family, and each that takes more than `SLOW` is slow unless its
own marks say which of its tests are.

A family is a test function with all its parameters, and its cost the sum over these, set-up included. To renew it:
`WHOLE_LABS=1 pytest -n 2 --junitxml=build/tests.xml`, then `python -m tests.costs build/tests.xml`. A sampled run would
make slow families look cheap.
"""

import json
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

COSTS = Path(__file__).with_name("costs.json")
SLOW = 1.5  # seconds


def family(nodeid: str) -> str:
    """Return a test's name without its parameters."""
    return nodeid.partition("[")[0]


@cache
def slow_families() -> set[str]:
    """Return the families that take more than `SLOW` seconds, all tests together."""
    costs = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    return {name for name, seconds in costs.items() if seconds > SLOW}


def read_report(report: Path) -> dict[str, float]:
    """Return the seconds of each family in a JUnit report; skipped tests do not count."""
    seconds: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            seconds[_nodeid(case.attrib["classname"], case.attrib["name"])] += float(case.attrib["time"])
    return dict(seconds)


def _nodeid(classname: str, name: str) -> str:
    """Return `tests/a/test_b.py::test_c` for "tests.a.test_b" and "test_c[1]", with the class between them if any."""
    parts = classname.split(".")
    module = next(i for i, part in enumerate(parts) if part.startswith("test_")) + 1
    return "::".join(["/".join(parts[:module]) + ".py", *parts[module:], family(name)])


def main(report: str) -> None:
    """Write what a report measured; families that it lacks keep their costs."""
    known = json.loads(COSTS.read_text(encoding="utf-8")) if COSTS.exists() else {}
    costs = known | {name: round(seconds, 1) for name, seconds in read_report(Path(report)).items()}
    kept = {name: seconds for name, seconds in sorted(costs.items()) if seconds > SLOW / 2}
    COSTS.write_text(json.dumps(kept, indent=0) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
