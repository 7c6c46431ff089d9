"""Imports between rooms go one way only, and most rooms never reach TensorFlow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import runner

ROOT = Path(__file__).resolve().parents[2]
# A room is a folder, or a module at the top; each imports only those before it.
ROOMS = """
    errors console internals system config inputs checkpoints rules tracking runs planning
    restoration proof session graph hooks training estimator lifecycle sweeps cluster mapping api
    commands __main__
""".split()  # noqa: SIM905 - a line of names reads better than a list of literals
# Of classes, by a call such as `Enum("NonFinite", ...)`.
MAKERS_OF_CLASSES = ("Enum", "enum.Enum", "StrEnum", "enum.StrEnum", "NamedTuple", "namedtuple")
FREE_OF_TENSORFLOW = ("errors", "console", "system", "config", "tracking", "sweeps", "commands")


def modules(package: str) -> dict[str, Path]:
    """Module name -> file, for every module of a package of this repository."""
    modules = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path: Path) -> frozenset[str]:
    """Every absolute name that a file imports, also in functions and under TYPE_CHECKING."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            assert node.module is not None
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


MODULES = modules("runner")


def room(name: str) -> str:
    """The room of a module or of a name in it: the first part after `runner`."""
    return name.split(".")[1]


def test_every_room_has_its_place_and_its_purpose() -> None:
    assert {room(module) for module in MODULES if module != "runner"} == set(ROOMS)
    for path in (ROOT / "runner").glob("*/__init__.py"):
        listed = ast.get_docstring(ast.parse(path.read_text())) or ""
        for file in path.parent.glob("*.py"):
            assert file == path or re.search(rf"\b{file.stem}\b", listed), f"{path} lacks {file}"


def test_the_package_names_the_rooms_in_their_order() -> None:
    listed = re.search(r"in this order: ([\w,\s]+)\.", runner.__doc__ or "")
    assert listed is not None
    folders = [name for name in ROOMS if (ROOT / "runner" / name).is_dir()]
    assert listed[1].replace("\n", " ").split(", ") == [
        name for name in folders if name != "internals"
    ]


def test_a_room_imports_only_rooms_before_it() -> None:
    wrong = {
        (module, imported)
        for module, path in MODULES.items()
        for imported in imports(path)
        if module != "runner" and imported.startswith("runner.")
        if ROOMS.index(room(imported)) > ROOMS.index(room(module))
    }
    assert wrong == set()


# Besides its rooms, files such as `py.typed`.
MOST_ENTRIES = 28
MOST_LINES = 400


def test_the_top_and_every_file_stay_short() -> None:
    entries = [path for path in (ROOT / "runner").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_the_page_on_the_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    named = {name.removeprefix("runner/") for name in re.findall(r"`([a-z_/]+\.py)`", text)}
    assert len(named) > 20
    missing = [
        name for name in named if not any((ROOT / root / name).is_file() for root in ("", "runner"))
    ]
    assert missing == []


def test_every_folder_of_tests_is_in_their_readme() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - {"__pycache__"}
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)", text, re.MULTILINE)
    assert {row.split("/")[0] for row in rows} == folders
    named = [
        path
        for cell in re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
        for path in re.findall(r"`([^`]*)`", cell)
    ]
    assert named
    for name in named:
        if "ROOM" not in name:
            assert [*(ROOT / "tests").rglob(name.rstrip("/"))], name


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(module)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS_OF_CLASSES:
                homes.setdefault(ast.literal_eval(node.args[0]), set()).add(module)
    assert "NonFinite" in homes
    assert {name: modules for name, modules in homes.items() if len(modules) > 1} == {}


def test_no_two_files_import_each_other_directly_or_through_others() -> None:
    graph = {
        name: {module for module in MODULES if module in _imported(path)} - {"runner", name}
        for name, path in MODULES.items()
    }
    # A sorter raises a CycleError that names the files.
    assert len([*TopologicalSorter(graph).static_order()]) == len(graph)


def _imported(path: Path) -> set[str]:
    """The modules that a file imports itself or names of."""
    names = imports(path)
    modules = {name for name in names if name in MODULES}
    return modules | {name.rpartition(".")[0] for name in names - modules}


def test_type_checkers_see_the_public_names_of_the_package() -> None:
    imported = {
        f"{node.module}.{alias.name}"
        for node in nodes(MODULES["runner"])
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("runner")
        for alias in node.names
    }
    modules = {"checkpoints": "runner", "estimator": "runner", **runner._MODULES}
    assert imported == {f"{module}.{name}" for name, module in modules.items()}


def test_only_mlflow_modules_import_mlflow() -> None:
    packages = {
        name: {imported.split(".")[0] for imported in imports(path)}
        for name, path in {**MODULES, **modules("experiments")}.items()
    }
    assert {name for name, imported in packages.items() if "mlflow" in imported} == {
        "runner.internals.mlflow",  # Its types only.
        "runner.tracking.mlflow_connection",
        "runner.tracking.mlflow_models",
        "runner.tracking.mlflow_run",
        "runner.tracking.mlflow_store",
    }


def test_a_warm_start_without_a_run_imports_neither_hydra_nor_mlflow() -> None:
    packages: set[str] = set()
    pending, seen = ["runner.restoration.eager"], set[str]()
    while pending:
        module = pending.pop()
        if module in seen or module == "runner":
            continue
        seen.add(module)
        body = ast.parse(MODULES[module].read_text(encoding="utf-8")).body
        for node in body:
            names = [alias.name for alias in getattr(node, "names", ())]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
            elif not isinstance(node, ast.Import):
                continue
            packages |= {name.split(".")[0] for name in names}
            pending += [name for name in names if name in MODULES]
    assert "tensorflow" in packages
    assert packages.isdisjoint({"hydra", "mlflow"})


def test_the_runner_does_not_know_the_experiments() -> None:
    for path in MODULES.values():
        assert "experiments" not in {name.split(".")[0] for name in imports(path)}


def test_experiments_import_nothing_private_of_the_runner() -> None:
    assert modules("experiments")
    for path in modules("experiments").values():
        for name in imports(path):
            if name.split(".")[0] == "runner":
                assert not any(part.startswith("_") for part in name.split("."))


IMPORTING = """
import importlib, sys
from runner.commands.command_line import main
rooms = sys.argv[1:]
def report(*what):
    print(*what, *{"tensorflow", "keras", "mlflow", "torch", "pandas"} & set(sys.modules))
for command in ("--help", "+experiment=lstm_cnn train.steps=0"):
    sys.argv[1:] = command.split()
    try:
        code = main()
    except SystemExit as error:
        code = error.code
    report("exit", code, command, *{"optuna"} & set(sys.modules))
for name in rooms:
    importlib.import_module(name)
report("rooms")
"""


def test_commands_and_rooms_around_the_graph_wait_for_no_large_library(tmp_path: Path) -> None:
    names = [
        module for module in MODULES if module != "runner" and room(module) in FREE_OF_TENSORFLOW
    ]
    of_mlflow = {name for name in names if ".mlflow_" in name}
    beside = {
        room(imported)
        for name in of_mlflow
        for imported in imports(MODULES[name])
        if imported[:7] == "runner."
    }
    assert beside - {"internals"} <= set(FREE_OF_TENSORFLOW)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, *sorted(set(names) - of_mlflow)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith(("rooms", "exit"))]
    assert reports == [
        "exit 0 --help",
        "exit 2 +experiment=lstm_cnn train.steps=0",
        "rooms",
    ]
    assert list(tmp_path.iterdir()) == []
