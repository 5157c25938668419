"""How the course does on a busy machine: `python -m tests.release.busy_machine` (half an hour on two quiet cores).

Four pieces of it run on the machine as it is, and beside one busy loop a core: once with idle threads that spin
briefly, as `import helpers` has it, and once with threads that spin as OpenMP's do by default. The table has the
seconds, the ratio of busy to quiet, and whether the checks and claims said what they say on the quiet machine.

`--pairs` asks what that costs where nothing else runs, and what sleeping at once would: processes take turns at the
same work.
`--only NAME` runs one piece, `--repeats N` each of them several times; of several, the median counts.

`--claims LAB ...` runs whole labs beside the busy loops (`--loops 0`: beside whatever runs already), and says which
claims and checks fell: those whose verdict is another one than in the receipt of a CPU. "Too busy to tell" is no fall.

This is no test: it takes long, and its figures are only worth something when nothing else runs on the machine.
"""

import argparse
import contextlib
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers import text_table
from helpers.claims.measurement import Measurement
from helpers.claims.receipt import FOLDER, Receipt
from helpers.core.files import ROOT

COURSE: dict[str, str] = {}  # `import helpers` sets the rest
SPINNING = {"GOMP_SPINCOUNT": "300000"}  # GNU's default where no policy is set; it counts for more than the policy
SLEEPING = {"GOMP_SPINCOUNT": "0"}
POLICIES = {"course": COURSE, "spin": SPINNING}
PAIRED = {**POLICIES, "sleep": SLEEPING}
VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
LOOPS = os.cpu_count() or 1
LIMIT = 1800.0  # seconds for one run
HALF = "unequal"  # the cell of the lab on data parallel before which its first half ends

# Put behind a lab's last cell: which claims held.
TELL = """
import json as _json
_rows = [(row.claim, row.said, row.subject, row.verdict) for row in claims.rows] if "claims" in globals() else []
print("CLAIMS " + _json.dumps(_rows))
"""
# What `--pairs` times, in a process of its own; medians of seconds.
WORK = """
import helpers, json, torch
from helpers import SmallCNN, benchmark, digits
a, small = torch.randn(512, 512), torch.randn(200, 200)
images, labels, *_ = digits()
model, x, y = SmallCNN(), images[:64], labels[:64]

def operations():
    for _ in range(300):
        small.add(1).mul(2)

def step():
    torch.nn.functional.cross_entropy(model(x), y).backward()

work = {"products of 512 x 512": lambda: a @ a, "600 small operations": operations, "a step of the CNN": step}
print(json.dumps({name: benchmark(fn, runs=40, warmup=5).median for name, fn in work.items()}))
"""
Verdicts = list[list[object]]  # a claim or a check, and what was said of it


def run(command: list[str], policy: dict[str, str], **more: str) -> str:
    """Return what `command` prints.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment = {**inherited, **policy, **more, "MPLBACKEND": "agg"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    done.check_returncode()
    return done.stdout


def lab(name: str, until: str = "") -> Callable[[dict[str, str]], Verdicts]:
    """Return a piece: the source of a lab as a plain script, up to the cell called `until`."""

    def piece(policy: dict[str, str]) -> Verdicts:
        text = (ROOT / "solutions" / f"{name}.py").read_text(encoding="utf-8")
        if until:
            text = text[: text.index(f'\n# %% name="{until}"')]
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, f"{name}.py")
            script.write_text(text + TELL, encoding="utf-8")
            out = run([sys.executable, str(script)], policy, TAS_PROGRESS=folder)
            progress = Path(folder, "progress.json")
            labs = json.loads(progress.read_text(encoding="utf-8")) if progress.exists() else {}
        claims = json.loads(next(line for line in out.splitlines() if line.startswith("CLAIMS "))[7:])
        return claims + sorted([check, *result] for lab in labs.values() for check, result in lab["checks"].items())

    return piece


def grading(policy: dict[str, str]) -> Verdicts:
    """Grade the solution of each exercise as the submission of a student."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "grades")
        for path in (ROOT / "solutions").glob("*_x*.ipynb"):
            student = Path(folder, "class", f"student of {path.stem}")
            student.mkdir(parents=True)
            (student / path.name).write_bytes(path.read_bytes())
        run([sys.executable, "-m", "helpers", "grade", str(student.parent), "--out", str(out), "--seed", "1"], policy)
        with (out / "gradebook.csv").open(encoding="utf-8-sig", newline="") as book:
            return [[value for name, value in row.items() if name != "seconds"] for row in csv.DictReader(book)]


PIECES: dict[str, Callable[[dict[str, str]], Verdicts]] = {
    "mixed_precision": lab("03_mixed_precision"),
    "x2": lab("04_x2_batch_256"),
    "data_parallel": lab("11_data_parallel", HALF),
    "grading": grading,
}


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep so many cores busy with other people's work."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def compare_pieces(names: list[str], repeats: int) -> str:
    """Run the pieces quiet and busy, with threads that sleep and that spin, by turns; return the table."""
    rows = [("piece", "idle threads", "quiet s", "busy s", "ratio", "same verdicts")]
    for name in names:
        seconds: dict[tuple[str, int], list[float]] = {}
        verdicts: dict[tuple[str, int], list[Verdicts]] = {}
        for _ in range(repeats):
            for policy in POLICIES:
                for loops in (0, LOOPS):
                    with busy(loops):
                        began = time.perf_counter()
                        said = PIECES[name](POLICIES[policy])
                        took = time.perf_counter() - began
                    seconds.setdefault((policy, loops), []).append(took)
                    verdicts.setdefault((policy, loops), []).append(said)
                    print(f"{name}, threads {policy}, {loops} busy loops: {took:.1f} s", file=sys.stderr, flush=True)
        normal = verdicts["course", 0][0]
        for policy in POLICIES:
            quiet, loaded = (statistics.median(seconds[policy, loops]) for loops in (0, LOOPS))
            said = verdicts[policy, 0] + verdicts[policy, LOOPS]
            same = "yes" if all(one == normal for one in said) else "no"
            for line in {str(line) for one in said for line in one if line not in normal}:
                print(f"{name}, threads {policy}: {line}", file=sys.stderr)
            rows.append((name, policy, f"{quiet:.1f}", f"{loaded:.1f}", f"{loaded / quiet:.2f}", same))
    return text_table(rows)


def usual_verdicts() -> dict[tuple[str, str, str], str]:
    """Return what the newest CPU receipt says of each claim, by its number, words and subject."""
    receipts = [receipt for receipt in map(Receipt.read, FOLDER.glob("*.json")) if receipt.kind == "cpu"]
    receipts.sort(key=lambda receipt: max(step["date"] for step in receipt.steps.values()))
    rows: list[Measurement] = [row for receipt in receipts for _, row in receipt.rows()]
    return {(row.claim, row.said, row.subject): row.verdict for row in rows}


def fallen(names: list[str], loops: int) -> str:
    """Run each lab once beside so many busy loops; return the table of claims and checks, and what fell."""
    usual, rows, lines = usual_verdicts(), [("lab", "s", "verdicts", "as usual", "too busy to tell", "fell")], []
    for name in names:
        with busy(loops):
            began = time.perf_counter()
            said = lab(name)(COURSE)
            took = time.perf_counter() - began
        claims = [one for one in said if len(one) == 4 and isinstance(one[3], str)]  # else a check and its result
        checks = [one for one in said if one not in claims]
        busy_now = [one for one in claims if one[3] == "not measured here"]
        fell = [one for one in claims if one not in busy_now and usual.get(tuple(one[:3]), one[3]) != one[3]]
        fell += [one for one in checks if not one[1]]
        counts = (len(said), len(said) - len(busy_now) - len(fell), len(busy_now), len(fell))
        rows.append((name, f"{took:.0f}", *map(str, counts)))
        lines += [f"{name}: {one}" for one in fell]
        print("\t".join(rows[-1]), *lines[-len(fell) :] if fell else (), sep="\n", file=sys.stderr, flush=True)
    return "\n".join([text_table(rows), *lines])


def compare_pairs(pairs: int) -> str:
    """Time the same work in processes whose idle threads differ, by turns; return the table of ratios to spinning."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for pair in range(pairs):
        for policy in sorted(PAIRED, reverse=pair % 2 == 1):  # the first and the last change places
            for work, took in json.loads(run([sys.executable, "-c", WORK], PAIRED[policy])).items():
                seconds.setdefault(work, {}).setdefault(policy, []).append(took)
    rows = [("work", "idle threads", "ms", "to spinning", "lowest pair", "highest pair")]
    for work, took in seconds.items():
        for policy, runs in took.items():
            ratios = [a / b for a, b in zip(runs, took["spin"], strict=True)]
            figures = (f"{f(ratios):.2f}" for f in (statistics.median, min, max))
            rows.append((work, policy, f"{statistics.median(runs) * 1e3:.3f}", *figures))
    return text_table(rows)


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.release.busy_machine", description=__doc__.partition(":")[0])
    parser.add_argument("--only", choices=PIECES, help="run one piece")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="runs of each piece (default 1)")
    parser.add_argument(
        "--pairs", type=int, default=0, metavar="N", help="what idle threads cost on a quiet machine: so many pairs"
    )
    parser.add_argument(
        "--claims", nargs="+", metavar="LAB", default=[], help="run these labs whole: which claims fall?"
    )
    parser.add_argument(
        "--loops", type=int, default=LOOPS, metavar="N", help="busy loops for --claims (default: cores)"
    )
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before the start")
    if args.claims:
        print(fallen(args.claims, args.loops))
        return
    print(
        compare_pairs(args.pairs)
        if args.pairs
        else compare_pieces([args.only] if args.only else [*PIECES], args.repeats)
    )


if __name__ == "__main__":
    main()
