"""Imports between rooms go one way only, and most rooms never reach TensorFlow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A room is a folder, or a module at the top; each imports only those before it.
ROOMS = """
    errors console tensorflow_internals system config inputs checkpoints tracking runs restoration
    graph session hooks training run sweeps cluster inspect lineage sync __main__
""".split()  # noqa: SIM905 - a line of names reads better than a list of literals
FREE_OF_TENSORFLOW = ("errors", "console", "system", "config", "tracking", "sweeps")


def modules(package: str) -> dict[str, Path]:
    """Module name -> file, for every module of a package of this repository."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Every absolute name that a file imports, also in functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{each.name}" for each in node.names)


MODULES = modules("runner")


def room(name: str) -> str:
    """The room of a module or of a name in it: the first part after `runner`."""
    return name.split(".")[1]


def test_every_room_has_its_place_and_its_purpose() -> None:
    assert {room(each) for each in MODULES if each != "runner"} == set(ROOMS)
    for path in (ROOT / "runner").glob("*/__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} says nothing"


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_rooms_before_it(name: str) -> None:
    imported = {
        (module, room(each))
        for module, path in MODULES.items()
        if module != "runner" and room(module) == name
        for each in imports(path)
        if each.startswith("runner.")
    }
    allowed = ROOMS[: ROOMS.index(name) + 1]
    assert {each for each in imported if each[1] not in allowed} == set()


# Their arguments are TensorFlow's.
TENSORFLOW_SIGNATURES = {
    "runner.session.monitored_session.MonitoredTrainingSession",
    "runner.session.monitored_session.__init__",
    "runner.session.session_manager.prepare_session",
}


def test_files_and_functions_stay_short() -> None:
    found = []
    for module, path in MODULES.items():
        source = path.read_text(encoding="utf-8")
        found += [f"{module} is long"] * (source.count("\n") > 400)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                name, given = f"{module}.{node.name}", node.args
                arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                count = len([each for each in arguments if each.arg not in ("self", "cls")])
                lines = (node.end_lineno or 0) - node.lineno + 1
                if name not in TENSORFLOW_SIGNATURES and (count > 6 or lines > 45):
                    found.append(f"{name} has {count} parameters and {lines} lines")
    assert found == []


def test_only_mlflow_modules_import_mlflow() -> None:
    packages = {
        name: {each.split(".")[0] for each in imports(path)}
        for name, path in {**MODULES, **modules("experiments")}.items()
    }
    assert {name for name, found in packages.items() if "mlflow" in found} == {
        "runner.tracking.mlflow_run",
        "runner.tracking.mlflow_store",
    }


def test_the_runner_does_not_know_the_experiments() -> None:
    for path in MODULES.values():
        assert "experiments" not in {name.split(".")[0] for name in imports(path)}


def test_experiments_import_nothing_private_of_the_runner() -> None:
    assert modules("experiments")
    for path in modules("experiments").values():
        for name in imports(path):
            if name.split(".")[0] == "runner":
                assert not any(part.startswith("_") for part in name.split("."))


def run_python(code: str, *arguments: str, cwd: Path) -> str:
    """Runs code in a new interpreter and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({"tensorflow", "keras", "mlflow"} & set(sys.modules)))
"""


def free_of_tensorflow() -> list[str]:
    return [each for each in MODULES if each != "runner" and room(each) in FREE_OF_TENSORFLOW]


def test_rooms_around_the_graph_import_no_tensorflow(tmp_path: Path) -> None:
    assert run_python(IMPORT_ALL, *free_of_tensorflow(), cwd=tmp_path) == "mlflow\n"


def test_mlflow_waits_until_a_store_is_opened(tmp_path: Path) -> None:
    rest = [each for each in free_of_tensorflow() if ".mlflow_" not in each]
    assert run_python(IMPORT_ALL, *rest, "runner", "runner.__main__", cwd=tmp_path) == "\n"


COMMANDS = """
import sys
from runner.__main__ import main
for command in ("--help", "--cfg job", "+experiment=lstm_cnn --cfg job", "--info searchpath",
                "", "+experiment=nosuch", "+experiment=lstm_cnn train.steps=0"):
    sys.argv[1:] = command.split()
    try:
        code = main()
    except SystemExit as error:
        code = error.code
    loaded = {"tensorflow", "keras", "mlflow"} & set(sys.modules)
    print("exit", code, command, *loaded, file=sys.stderr)
"""


def test_help_and_configuration_errors_wait_for_neither(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if line.startswith("exit")] == [
        "exit 0 --help",
        "exit 0 --cfg job",
        "exit 0 +experiment=lstm_cnn --cfg job",
        "exit 0 --info searchpath",
        "exit 2 ",
        "exit 2 +experiment=nosuch",
        "exit 2 +experiment=lstm_cnn train.steps=0",
    ]
    assert list(tmp_path.iterdir()) == []
