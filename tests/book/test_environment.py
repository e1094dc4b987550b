"""pyproject.toml, requirements.lock and environment.yml ask for the same packages."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[2]
CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
FOR_ONE_DEVICE = re.compile(r"nvidia-|cuda-|triton$")  # torch brings them where they are of use


def wanted() -> dict[str, Requirement]:
    """What pyproject.toml asks for, development included."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"]["dev"]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


def locked() -> dict[str, str]:
    lines = (PROJECT / "requirements.lock").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 for pin in pins), "requirements.lock: every line is name==version"
    return {canonicalize_name(name): version for name, version in pins}


def test_the_lock_pins_every_dependency_within_its_bounds():
    pins = locked()
    assert [name for name in wanted() if name not in pins] == []
    assert [name for name, each in wanted().items() if not each.specifier.contains(pins[name])] == []


def test_the_lock_holds_jupyter_book_1():
    assert locked()["jupyter-book"].split(".")[0] == "1"  # 2 is another program that reads other files


def test_the_lock_is_all_that_is_needed_and_no_more():
    needed, seen, todo = set(), set(), list(wanted().values())
    while todo:
        each = todo.pop()
        if (each.name, *sorted(each.extras)) in seen:
            continue
        seen.add((each.name, *sorted(each.extras)))
        needed.add(canonicalize_name(each.name))
        try:
            requires = map(Requirement, metadata.requires(each.name) or [])
        except metadata.PackageNotFoundError:
            pytest.fail(f"{each.name} is not installed: this is not the environment of requirements.lock")
        extras = each.extras or {""}
        todo += [
            r for r in requires if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras)
        ]
    needed = {name for name in needed if not FOR_ONE_DEVICE.match(name)} - {"setuptools"}
    assert needed == set(locked())


def test_conda_asks_for_the_same_packages_and_bounds():
    entries = yaml.safe_load((PROJECT / "environment.yml").read_text())["dependencies"]
    by_pip = next(entry["pip"] for entry in entries if isinstance(entry, dict))
    asked = [Requirement(entry) for entry in [*(e for e in entries if isinstance(e, str)), *by_pip]]
    asked = {CONDA_NAMES.get(each.name, canonicalize_name(each.name)): each.specifier for each in asked}
    python = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert str(asked.pop("python")) == python
    asked.pop("pip")
    assert asked == {name: each.specifier for name, each in wanted().items()}
