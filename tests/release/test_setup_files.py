"""requirements.txt, pyproject.toml and environment.yml tell the same story."""

import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .oldest import UNPINNED, oldest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins():
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]
    return {canonicalize_name(r.name): r for r in found}


def ranges():
    lines = list(PROJECT["dependencies"])
    for name, extra in PROJECT["optional-dependencies"].items():
        lines += extra if name not in UNPINNED else []
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r for r in found if r.name != PROJECT["name"]}


def test_requirements_pin_exactly():
    assert [str(r) for r in pins().values() if [s.operator for s in r.specifier] != ["=="]] == []
    assert str(pins()["torch"].specifier) == "==2.13.0"


def test_same_packages_in_both():
    assert set(pins()) == set(ranges())


@pytest.mark.parametrize("name", sorted(ranges()))
def test_every_pin_lies_in_its_range(name):
    (pin,) = pins()[name].specifier
    wanted = ranges()[name]
    assert wanted.specifier.contains(pin.version)
    assert {s.operator for s in wanted.specifier} == {">="}, "a range, so that Colab keeps what it has"


def test_the_oldest_environment_takes_the_low_end_of_every_range():
    lowest = {canonicalize_name(r.name): r for r in map(Requirement, oldest(PROJECT))}
    assert set(lowest) == set(ranges())
    for name, pin in lowest.items():
        (low,) = ranges()[name].specifier
        assert str(pin.specifier) == f"=={low.version}"


def test_torch_and_python_ranges():
    assert str(ranges()["torch"].specifier) == ">=2.9"
    assert PROJECT["requires-python"] == ">=3.11"


def test_environment_installs_the_same_requirements():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip == ["-r requirements.txt", "-e ."]
    assert f"python{PROJECT['requires-python']}" in environment["dependencies"]
    assert environment["name"] == PROJECT["name"]
