"""Which packages the lane needs, which of them a machine lacks, and how to carry them there as wheels.

A GPU image has PyTorch and what comes with it, but not all that the labs import, and it may reach no registry. So on a
machine with a network, `make gpu-wheels` puts the rest into `build/wheels`; `make gpu` installs from that folder.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

NEEDED = (
    "torch",
    "numpy",
    "scikit-learn",
    "matplotlib",
    "psutil",
    "joblib",
    "cloudpickle",
    "rich",
    "tqdm",
    "jinja2",
    "transformers",
    "peft",
    "pytest",
)
"""Without these some steps cannot run. bitsandbytes, torchao and Triton add figures where they are installed."""
WITH_TORCH = frozenset(("torch", "triton", "numpy", "scipy", "scikit-learn"))
"""Large, and tied to the machine's CUDA or to each other: an image that has PyTorch for a GPU has these, too."""
PYTHON = "3.12"
GLIBC = (28, 27, 24, 17, 12, 5)  # minor versions that wheels are tagged with; pip takes none but those named
PLATFORMS = (*(f"manylinux_2_{n}_x86_64" for n in GLIBC), "manylinux2014_x86_64", "manylinux1_x86_64")


def missing_packages() -> list[str]:
    """Return those of the needed packages that are not installed here."""
    return [name for name in NEEDED if not _installed(name)]


def closure(names: Iterable[str]) -> dict[str, str]:
    """Return name -> version of packages and all they need, as installed here; PyTorch and its kind are left out."""
    found: dict[str, str] = {}
    waiting = [_canonical(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found or name in WITH_TORCH or name.startswith("nvidia-") or not _installed(name):
            continue
        found[name] = version(name)
        waiting += [_canonical(line) for line in distribution(name).requires or () if "extra ==" not in line]
    return found


def _canonical(requirement: str) -> str:
    """Return the name in a line such as "Jinja2 (>=3) ; python_version < '4'", in lower case and with dashes."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def main(argv: list[str] | None = None) -> int:
    """Download wheels. Returns pip's exit code."""
    parser = argparse.ArgumentParser(description="Download wheels for a GPU machine without a network.")
    parser.add_argument("names", nargs="*", default=NEEDED, help="packages; default: everything that make gpu needs")
    parser.add_argument("--to", type=Path, required=True, help="folder for the wheels")
    parser.add_argument("--python", default=PYTHON, help=f"the GPU machine's Python; default: {PYTHON}")
    args = parser.parse_args(argv)
    wheels = [f"{name}=={number}" for name, number in sorted(closure(args.names).items())]
    target = ["--python-version", args.python, "--implementation", "cp", "--only-binary", ":all:", "--no-deps"]
    target += [option for platform in PLATFORMS for option in ("--platform", platform)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *target]
    code = subprocess.run([*command, "--dest", str(args.to), *wheels], check=False).returncode
    size = sum(path.stat().st_size for path in args.to.glob("*.whl")) / 1e6
    print(f"{args.to}: {len(list(args.to.glob('*.whl')))} wheels, {size:.0f} MB")
    return code


if __name__ == "__main__":
    sys.exit(main())
