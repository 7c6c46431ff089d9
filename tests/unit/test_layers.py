"""Imports between the modules go one way only, and most of them never reach TensorFlow."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A module imports only modules above it.
FREE_OF_TENSORFLOW = [
    "runner.errors",
    "runner.references",
    "runner.schedule",
    "runner.cluster_config",
    "runner.tracking_config",
    "runner.config",
    "runner.checkpoint_uris",
    "runner.schema",
    "runner.explanation",
    "runner.composition",
    "runner.cluster",
    "runner.cluster.tf_config",
    "runner.cluster.tasks",
    "runner.cluster.addresses",
    "runner.cluster.checks",
    "runner.cluster.task_checks",
    "runner.cluster.training_checks",
    "runner.cluster.specification",
    "runner.scaffold_validation",
    "runner.rate_validation",
    "runner.validation",
    "runner.override_problems",
    "runner.fingerprint",
    "runner.identity",
    "runner.durable_files",
    "runner.file_lock",
    "runner.moved_folders",
    "runner.run_owner",
    "runner.run_directory",
    "runner.argument_values",
    "runner.targets",
    "runner.screen",
    "runner.interruption",
    "runner.quick_import",
    "runner.cluster.launcher_watch",
    "runner.quiet_import",
    "runner.tensorflow_import",
    "runner.checkpoints",
    "runner.checkpoints.reader",
    "runner.checkpoints.files",
    "runner.checkpoints.zip_archive",
    "runner.checkpoints.checkpoint_state",
    "runner.checkpoints.contents",
    "runner.checkpoints.local_copy",
    "runner.checkpoints.mlflow_uri",
    "runner.checkpoints.recognition",
    "runner.checkpoints.locate",
    "runner.restoration",
    "runner.restoration.dtypes",
    "runner.restoration.command_line",
    "runner.restoration.nearest_names",
    "runner.restoration.variables",
    "runner.restoration.selection",
    "runner.restoration.renames",
    "runner.restoration.states",
    "runner.restoration.suggestions",
    "runner.restoration.conversions",
    "runner.restoration.lstm",
    "runner.restoration.vocabulary",
    "runner.restoration.named_conversions",
    "runner.restoration.plan",
    "runner.restoration.placement",
    "runner.restoration.ownership",
    "runner.restoration.missing",
    "runner.restoration.fitting",
    "runner.restoration.rule_problems",
    "runner.restoration.matching",
    "runner.restoration.coverage",
    "runner.restoration.planner",
    "runner.restoration.rows",
    "runner.restoration.collapse",
    "runner.restoration.report",
    "runner.restoration.json_report",
    "runner.restoration.html_report",
    "runner.restoration.provenance",
    "runner.restoration.finiteness",
    "runner.tracking.keys",
    "runner.tracking.flatten",
    "runner.tracking.exported_model",
    "runner.tracking.tracker",
    "runner.tracking.records",
    "runner.tracking.batching",
    "runner.tracking.encoding",
    "runner.tracking.journal_line",
    "runner.tracking.journal",
    "runner.tracking.tracking_directory",
    "runner.tracking.destination",
    "runner.tracking.follower",
    "runner.tracking.no_tracker",
    "runner.tracking.source_control",
    "runner.tracking.address",
    "runner.tracking.sqlite_database",
    "runner.tracking.mlflow_artifacts",
    "runner.tracking.mlflow_run",
    "runner.tracking.mlflow_models",
    "runner.tracking.mlflow_tracker",
    "runner.tracking.masking",
    "runner.tracking.follower_process",
    "runner.tracking.journal_tracker",
    "runner.tracking",
    "runner.lineage",
    "runner.sweeps",
    "runner.sweeps.attempt",
    "runner.sweeps.orphan",
    "runner.sweeps.mappings",
    "runner.sweeps.constraints",
    "runner.sweeps.left_behind",
    "runner.sweeps.sweep_directory",
    "runner.sweeps.trial",
    "runner.sweeps.objective",
    "runner.sweeps.extras",
    "runner.sweeps.orders",
    "runner.sweeps.slurm_job",
    "runner.sweeps.slurm_queue",
    "runner.cluster.trial_link",
    "runner.cluster.local",
    "runner.sweeps.shown_trials",
    "runner.sweeps.summary",
    "runner.sweeps.learning_curves",
    "runner.sweeps.literal_text",
    "runner.sweeps.curve_figure",
    "runner.sweeps.spelling",
    "runner.sweeps.points",
    "runner.sweeps.composed_once",
    "runner.sweeps.target_check",
    "runner.sweeps.source_check",
    "runner.sweeps.search_space",
    "runner.sweeps.samplers",
    "runner.sweeps.study",
    "runner.sweeps.reporting",
    "runner.sweeps.job",
    "runner.sweeps.execution",
    "runner.sweeps.unopened_runs",
    "runner.sweeps.parent_run",
    "runner.sweeps.figures",
    "runner.sweeps.conclusion",
    "runner.sweeps.sweeper",
    "runner.sweeps.grid_sweep",
    "runner.sweeps.ray_launch",
    "runner.sweeps.search",
    "runner.sweeps.search_sweep",
]
WITH_TENSORFLOW = [
    "runner.checkpoints.digest",
    "runner.checkpoints.bundle_index",
    "runner.checkpoints.bundle_data",
    "runner.checkpoints.comparison",
    "runner.checkpoints.statistics",
    "runner.checkpoints.averaging",
    "runner.checkpoints.hdf5_probe",
    "runner.checkpoints.hdf5",
    "runner.checkpoints.keras_names",
    "runner.checkpoints.keras_weights",
    "runner.checkpoints.keras_h5",
    "runner.checkpoints.keras_archive",
    "runner.checkpoints.npy",
    "runner.checkpoints.npz",
    "runner.checkpoints.safetensors_file",
    "runner.checkpoints.safetensors_shards",
    "runner.checkpoints.bundle",
    "runner.checkpoints.single_file",
    "runner.checkpoints.object_based",
    "runner.checkpoints.saved_model",
    "runner.checkpoints.hdf5_trial",
    "runner.checkpoints.open",
    "runner.checkpoints.provenance_file",
    "runner.saving",
    "runner.damaged_checkpoints",
    "runner.resumability",
    "runner.inspect",
    "runner.tracking.tensorboard_run",
    "runner.sync",
    "runner.averages",
    "runner.gradients",
    "runner.cluster.tokens",
    "runner.cluster.synchronous",
    "runner.experiment",
    "runner.variable_names",
    "runner.restoration.graph_restoration",
    "runner.restoration.initializers",
    "runner.restoration.assigning",
    "runner.restoration.initial_values",
    "runner.restoration.streaming",
    "runner.restoration.verification",
    "runner.restoration.restorer",
    "runner.session",
    "runner.session.scaffold",
    "runner.session.bounded_cache",
    "runner.session.feeds",
    "runner.session.run_structure",
    "runner.session.caller_thread",
    "runner.session.cached_session",
    "runner.session.session_manager",
    "runner.session.session_creators",
    "runner.session.monitored_session",
    "runner.session.supervisor",
    "runner.hooks.scheduled",
    "runner.hooks.finite",
    "runner.hooks.checkpoint",
    "runner.hooks.evaluation",
    "runner.hooks.metrics",
    "runner.hooks.early_stopping",
    "runner.hooks.input_state",
    "runner.hooks.memory",
    "runner.hooks.nan_loss",
    "runner.hooks.profile",
    "runner.hooks.progress",
    "runner.hooks.rewind",
    "runner.hooks.step_timing",
    "runner.hooks.stop",
    "runner.hooks.summaries",
    "runner.hooks.wall_clock",
    "runner.hooks",
    "runner.inputs.splits",
    "runner.inputs.generator",
    "runner.inputs.image_folder",
    "runner.inputs.npz",
    "runner.inputs.tfrecord",
    "runner.inputs",
    "runner.input_pipeline",
    "runner.cluster.replica",
    "runner.learning_rate",
    "runner.optimization",
    "runner.switches",
    "runner.training_step",
    "runner.graph_names",
    "runner.hook_targets",
    "runner.graph",
    "runner.resuming",
    "runner.sources",
    "runner.run_context",
    "runner.recording",
    "runner.cluster.server",
    "runner.cluster.channel",
    "runner.cluster.cluster_session",
    "runner.cluster.agreement",
    "runner.cluster.session_creators",
    "runner.cluster.chief",
    "runner.cluster.worker_hooks",
    "runner.cluster.worker",
    "runner.cluster.parameter_server",
    "runner.cluster.evaluator",
    "runner.cluster.roles",
    "runner.loop_hooks",
    "runner.training",
    "runner.exported",
    "runner.finished",
    "runner.run",
    "runner.__main__",
    "runner",
]
ORDER = [*FREE_OF_TENSORFLOW, *WITH_TENSORFLOW]


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


def dependency(name: str) -> str:
    """The module that an imported name is, or belongs to."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


MODULES = modules("runner")


def test_every_module_has_its_place() -> None:
    assert set(MODULES) - set(ORDER) == set(), "put the new modules into ORDER"
    assert set(ORDER) - set(MODULES) == set(), "take the old modules out of ORDER"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_what_comes_before_it(module: str) -> None:
    imported = {dependency(n) for n in imports(MODULES[module]) if n.split(".")[0] == "runner"}
    before = ORDER[: ORDER.index(module)]
    assert imported <= set(before), f"{module} imports {sorted(imported - set(before))}"


def test_only_mlflow_modules_import_mlflow() -> None:
    packages = {
        name: {each.split(".")[0] for each in imports(path)}
        for name, path in {**MODULES, **modules("experiments")}.items()
    }
    assert {name for name, found in packages.items() if "mlflow" in found} == {
        "runner.tracking.mlflow_models",
        "runner.tracking.mlflow_run",
        "runner.tracking.mlflow_tracker",
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


def test_what_is_left_of_the_line_imports_no_tensorflow(tmp_path: Path) -> None:
    assert run_python(IMPORT_ALL, *FREE_OF_TENSORFLOW, cwd=tmp_path) == "mlflow\n"


def test_mlflow_waits_until_a_store_is_opened(tmp_path: Path) -> None:
    rest = [each for each in FREE_OF_TENSORFLOW if not each.startswith("runner.tracking.mlflow_")]
    rest.append("runner.tracking.mlflow_artifacts")
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
