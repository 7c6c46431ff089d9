"""The package that a user installs: the wheel, the pinned versions, the supported Pythons."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.packages import wheel_of_sdist

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PYTHONS = [
    f"3.{minor}" for minor in range(30) if f"3.{minor}" in SpecifierSet(PROJECT["requires-python"])
]
SETS = ("oldest", "middle")
INFO = f"runner-{PROJECT['version']}.dist-info"
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")]


def files_below(folder: str) -> Iterator[str]:
    """The files of a folder of the repository, as paths relative to the repository."""
    for path in sorted((ROOT / folder).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def marker_environment(python: str, platform: str, machine: str) -> dict[str, str]:
    """The environment in which markers are evaluated, for another Python than this one."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": {"linux": "Linux", "darwin": "Darwin"}[platform],
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": platform,
        "extra": "",
    }


def pins(environment: dict[str, str]) -> list[tuple[str, str]]:
    """(name, version) of each pin that holds in the environment."""
    parsed = [Requirement(line) for line in CONSTRAINTS]
    return [
        (canonicalize_name(each.name), str(each.specifier).removeprefix("=="))
        for each in parsed
        if each.marker is None or each.marker.evaluate(environment)
    ]


def requirements() -> list[str]:
    """Everything that pyproject.toml asks for: to run, to develop and to build."""
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    build: list[str] = PYPROJECT["build-system"]["requires"]
    return [*PROJECT["dependencies"], *chain(*extras.values()), *build]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that users install."""
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(built)


def test_the_wheel_holds_the_packages_with_their_configs_and_nothing_else(wheel: Path) -> None:
    expected = {
        *files_below("runner"),
        *(path.replace("experiments", "runner/examples") for path in files_below("experiments")),
        *files_below("hydra_plugins"),
        *(f"runner/{path}" for folder in ("conf", "template") for path in files_below(folder)),
    }
    # With an __init__.py of ours, Hydra would find no other project's plugins.
    assert "hydra_plugins/__init__.py" not in expected
    assert {"runner/__init__.py", "runner/py.typed", "runner/conf/config.yaml"} <= expected
    packed = zipfile.ZipFile(wheel)
    names = {name for name in packed.namelist() if ".dist-info/" not in name}
    assert expected == names
    # Installed, they are `runner.examples`.
    assert not [name for name in names if b"from experiments" in packed.read(name)]


def test_a_wheel_built_from_the_source_distribution_is_the_same(
    wheel: Path, tmp_path: Path
) -> None:
    packed, of_sdist = zipfile.ZipFile(wheel), zipfile.ZipFile(wheel_of_sdist(tmp_path))
    assert sorted(of_sdist.namelist()) == sorted(packed.namelist())
    assert [name for name in packed.namelist() if of_sdist.read(name) != packed.read(name)] == []


NETS = "from runner.examples.models import DigitClassifier as Net\n"
COMMAND = """
from importlib.util import find_spec
from runner.__main__ import command
print([find_spec(each).origin for each in ("experiments.nets", "runner.examples.models")])
command()
"""


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("--cfg=job", "_target_: experiments.nets.Net"),
        pytest.param("mode=plan", "14 model variables from initializers", marks=pytest.mark.soak),
    ],
)
def test_an_installed_wheel_beside_experiments_of_the_users_own(
    argument: str, shown: str, wheel: Path, tmp_path: Path
) -> None:
    site, mine = tmp_path / "site", tmp_path / "mine"
    (mine / "experiments").mkdir(parents=True)
    (mine / "experiments" / "__init__.py").touch()
    (mine / "experiments" / "nets.py").write_text(NETS, encoding="utf-8")
    zipfile.ZipFile(wheel).extractall(site)
    scripts = zipfile.ZipFile(wheel).read(f"{INFO}/entry_points.txt").decode()
    assert "runner = runner.__main__:command" in scripts
    overrides = ["model._target_=experiments.nets.Net", argument, "tracking=none"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "+experiment=digits_cnn", *overrides],
        cwd=mine,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = [str(mine / "experiments/nets.py"), str(site / "runner/examples/models.py")]
    assert done.stdout.startswith(f"{modules}\n")
    assert shown in done.stdout


def test_an_editable_install_leaves_no_copy_of_the_configs(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["editable"])
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".pth") for name in names)
    assert not {name for name in names if "conf" in Path(name).parts}


@pytest.mark.parametrize("file", ["constraints.txt", *(f"constraints/{name}.txt" for name in SETS)])
def test_constraints_are_names_and_versions_for_any_index(file: str) -> None:
    pin = re.compile(r"[a-z0-9._-]+==[a-z0-9.]+( ; [a-zA-Z0-9_.,'()=!<>* ]+)?")
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    assert len(lines) > 100
    assert [line for line in lines if not pin.fullmatch(line)] == []


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / "constraints" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.partition(" ;")[0].split("==") for line in reversed(lines))
    for name in ("tensorflow", "keras", "hydra-core", "mlflow", "numpy"):
        (text,) = (text for text in PROJECT["dependencies"] if Requirement(text).name == name)
        (bound,) = (part for part in Requirement(text).specifier if part.operator == ">=")
        assert Version(pinned[name]).release[:2] == Version(bound.version).release[:2], (
            f"{name} is tested with {pinned[name]}; run make constraints"
        )


def script(name: str, *arguments: str) -> str:
    """Runs a script of `tests.support` and returns the last line that it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / name), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_warm_start_needs_only_the_core_of_the_dependencies() -> None:
    core: list[str] = PYPROJECT["dependency-groups"]["core"]
    dependencies: list[str] = PROJECT["dependencies"]
    assert core == dependencies[: len(core)]
    modules = {"hydra-core": "hydra", "scikit-learn": "sklearn"}
    extras = ["optuna", "ray", "tensorstore", "fsspec", "huggingface_hub"]
    others = [Requirement(text).name for text in dependencies[len(core) :]]
    refused = [modules.get(name, name) for name in others] + extras
    assert {"mlflow", "hydra", "pandas", "scipy"} <= {*refused}
    assert script("core_only.py", *refused) == "[[4.0, 4.0]] set()"


def test_what_works_without_runs_needs_nothing_that_windows_lacks() -> None:
    assert script("without_posix.py") == "[[4.0, 4.0]]"


@pytest.mark.parametrize(("platform", "machine"), PLATFORMS)
@pytest.mark.parametrize("python", PYTHONS)
def test_constraints_satisfy_every_requirement_once(
    python: str, platform: str, machine: str
) -> None:
    environment = marker_environment(python, platform, machine)
    pinned = pins(environment)
    versions = dict(pinned)
    assert len(versions) == len(pinned), "no package is pinned twice"
    for text in requirements():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name in versions, f"{text} has no pin for Python {python}; run make constraints"
            assert requirement.specifier.contains(versions[name]), (
                f"{text} is pinned to {versions[name]}"
            )


def test_supported_pythons_are_stated_alike_everywhere() -> None:
    prefix = "Programming Language :: Python :: "
    classifiers = [each.removeprefix(prefix) for each in PROJECT["classifiers"] if prefix in each]
    assert classifiers == PYTHONS
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    bounds = re.search(r"not (\(.*?\)) <= sys\.version_info\[:2\] < (\(.*?\))\)", makefile)
    assert bounds is not None
    low, high = (ast.literal_eval(bound) for bound in bounds.groups())
    assert [f"3.{minor}" for minor in range(low[1], high[1])] == PYTHONS


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    declared = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert declared is not None
    targets = set(declared[1].split()) - {"help", "same-python"}
    assert set(re.findall(r"@echo 'make ([\w-]+) ", makefile)) == targets
    assert targets <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
