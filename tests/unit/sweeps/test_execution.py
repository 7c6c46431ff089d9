"""Launchers in this process that lose trials as real ones do, and what is known of real ones."""

from __future__ import annotations

import contextlib
import inspect
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from hydra.core.plugins import Plugins
from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
from hydra_plugins.hydra_submitit_launcher.config import LocalQueueConf, SlurmQueueConf
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher
from omegaconf import OmegaConf
from submitit import SlurmJob
from submitit.core.utils import DelayedSubmission
from submitit.local.local import LocalExecutor

from hydra_plugins.runner_launchers.ray import RayLauncher
from runner.errors import ConfigError, InterruptedRunError
from runner.sweeps import execution
from runner.sweeps.execution import Execution, LauncherKind
from runner.sweeps.sweep_directory import Attempt, SweepDirectory
from runner.system.signals import Interruption
from runner.system.status import Status
from tests.tiny.sweeping import Died, FakeLauncher, easy


@pytest.fixture(autouse=True)
def _continuing(directory: SweepDirectory) -> None:
    directory.stop_on_failure(False)


def _first(*names: str) -> list[Attempt]:
    return [Attempt(number, 1, (name,), {"x": name}) for number, name in enumerate(names)]


def _brief(attempts: Sequence[Attempt]) -> str:
    """Returns the first letter of each status, and how often the trial was tried."""
    return " ".join(f"{str(each.status.value)[:2]}{each.number}" for each in attempts)


NO = ValueError("no")
# What happens to trial b each time it is started, the last repeated; how often it is retried; "1"
# where failures stop the sweep, "*" where a death may end other trials -> how trials a to d have
# FInished, FAiled, been KIlled or SKipped, and what is launched together.
CASES: dict[str, tuple[Sequence[BaseException | None], int, str, str, str]] = {
    "a failure leaves the others": ([NO], 0, "*", "FI1 FA1 FI1 FI1", "abcd"),
    "a failure stops the sweep on request": ([NO], 0, "1*", "FI1 FA1 SK1 SK1", "abcd"),
    "what fails is retried after the others": ([NO], 1, "*", "FI1 FA2 FI1 FI1", "abcd b"),
    "it is retried before it stops the sweep": ([NO], 2, "1*", "FI1 FA3 SK1 SK1", "abcd b b cd"),
    "what was held starts after the retry": ([NO, None], 1, "1*", "FI1 FI2 FI1 FI1", "abcd b cd"),
    "what a death takes along is not blamed": ([Died()], 0, "*", "FI1 KI1 FI1 FI1", "abcd d b c"),
    # It took c along, which had begun; d never has.
    "a death stops the sweep on request": ([Died()], 0, "1*", "FI1 KI1 KI1 SK1", "abcd b d c"),
    "where all die apart none is launched again": ([Died()], 0, "", "FI1 KI1 KI1 FI1", "abcd d"),
    "a killed trial is retried too": (
        *([Died(), Died(), None], 2, ""),
        *("FI1 FI3 FI3 FI1", "abcd bcd bcd"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_launches_and_retries(directory: SweepDirectory, name: str) -> None:
    errors, retries, kind, ended, launched = CASES[name]
    directory.stop_on_failure("1" in kind)
    left = list(errors)

    def work(overrides: Sequence[str]) -> Any:
        error = (left.pop(0) if len(left) > 1 else left[0]) if overrides[0] == "b" else None
        if error is not None:
            raise error
        return easy(overrides)

    launcher = FakeLauncher(directory, work)
    made = Execution(directory, launcher, retries, collective="*" in kind)
    attempts = made.run(_first("a", "b", "c", "d"))
    assert _brief(attempts) == ended
    assert " ".join("".join(each) for each in launcher.launched) == launched
    assert directory.stopped() == ("1" in kind and "SK" in ended)


def test_the_cause_of_a_death_is_what_the_launcher_raised(
    directory: SweepDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    def work(overrides: Sequence[str]) -> Any:
        raise Died

    (attempt,) = Execution(directory, FakeLauncher(directory, work), retries=0).run(_first("a"))
    cause = "RuntimeError: a worker was terminated"
    assert attempt.message == f"its process was killed: {cause}"
    assert caplog.messages == [f"The launcher failed, {cause}"]


def test_after_a_signal_trials_elsewhere_are_cancelled_and_waited_for(
    directory: SweepDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        file = directory.attempt(first)
        started = threading.Event()

        def train() -> None:
            with file.lock:
                file.update(status=Status.RUNNING, process="elsewhere:1")
                started.set()
                while not file.cancelled():
                    time.sleep(0.01)
                file.update(status=Status.KILLED, message="saved")

        threading.Thread(target=train).start()
        assert started.wait(60)
        signal.raise_signal(signal.SIGINT)

    withdrawn: list[Collection[int]] = []
    with Interruption().handled() as interruption:
        made = Execution(directory, launch, 3, interruption, withdraw=withdrawn.append)
        with pytest.raises(InterruptedRunError, match="ended by SIGINT"):
            made.run(_first("a", "b"))
    attempts = [file.read() for file in directory.attempts()]
    assert _brief(attempts) == "KI1 SK1"
    assert withdrawn == [{1}]
    assert (attempts[0].message, attempts[0].over) == ("saved", True)
    assert capfd.readouterr().err == "runner: waiting for trials to save their last step\n"


def test_a_signal_that_the_launcher_swallows_is_not_lost(directory: SweepDirectory) -> None:
    def launch(overrides: Sequence[Sequence[str]], first: int) -> None:
        with contextlib.suppress(InterruptedRunError):
            signal.raise_signal(signal.SIGTERM)

    handled = Interruption().handled()
    with handled as interruption, pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
        Execution(directory, launch, 3, interruption).run(_first("a"))


CONF = Path(__file__).resolve().parents[3] / "conf" / "hydra" / "launcher"
REMOTE_RAY = {"_target_": execution.RAY, "init": {"address": "auto"}}
# Launcher -> whether it is local and collective.
KINDS: list[tuple[dict[str, Any], tuple[bool, bool]]] = [
    ({"_target_": execution.SERIAL}, (True, True)),
    ({"_target_": execution.JOBLIB, "n_jobs": 2}, (True, True)),
    ({"_target_": execution.SUBMITIT}, (True, False)),
    ({"_target_": execution.SLURM}, (False, False)),
    ({"_target_": execution.RAY, "init": {"address": None}}, (True, False)),
    (REMOTE_RAY, (False, False)),
    ({"_target_": "mine.Launcher"}, (False, True)),
    ({}, (False, True)),
]


@pytest.mark.parametrize(("config", "kind"), KINDS)
def test_what_is_known_of_a_launcher(config: dict[str, Any], kind: tuple[bool, bool]) -> None:
    found = LauncherKind(config)
    assert (found.is_local, found.is_collective) == kind


SCHEMAS: dict[str, Any] = {
    execution.JOBLIB: JobLibLauncherConf,
    execution.SLURM: SlurmQueueConf,
    execution.SUBMITIT: LocalQueueConf,
    execution.RAY: None,
}


def test_shipped_launchers_are_installed_and_have_the_keys_of_their_configs() -> None:
    configs: dict[str, Any] = {}
    for file in CONF.glob("*.yaml"):
        config: Any = OmegaConf.load(file)
        configs[config.pop("_target_")] = config
    # Of submitit itself, to which the plugin passes what it does not know.
    assert set(configs[execution.SUBMITIT].pop("setup")) == {"trap '' INT"}
    assert "setup" in LocalExecutor._valid_parameters()
    assert configs.keys() == SCHEMAS.keys()
    for target, config in configs.items():
        LauncherKind({"_target_": target}).require_installed()
        if SCHEMAS[target] is not None:
            schema = OmegaConf.structured(SCHEMAS[target])
            assert OmegaConf.merge(schema, config)._target_ == target


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        (execution.SLURM, r'pip install "runner\[slurm\]"'),
        ("hydra_plugins.other.Launcher", "install its package"),
    ],
)
def test_a_launcher_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, target: str, remedy: str
) -> None:
    LauncherKind({"_target_": execution.SERIAL}).require_installed()
    monkeypatch.delitem(Plugins.instance().class_name_to_class, target, raising=False)
    with pytest.raises(ConfigError, match=remedy) as raised:
        LauncherKind({"_target_": target}).require_installed()
    assert f"hydra.launcher._target_ is {target!r}" in str(raised.value)


@pytest.fixture
def cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a `scancel` in place of Slurm's was given, a line for each call."""
    calls = tmp_path / "calls"
    calls.touch()
    command = tmp_path / "bin" / "scancel"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho $* >> {calls}\n")
    command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{command.parent}:/usr/bin:/bin")
    return calls


def test_jobs_that_wait_in_slurms_queue_are_cancelled_and_no_others(
    tmp_path: Path, cancelled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path / "sweep [1]" / ".submitit" / "%j")
    for name, number in (("12_0", 0), ("12_1", 1), ("13", 3), ("14", 3)):
        path = SlurmJob[object](folder, name).paths.submitted_pickle
        path.parent.mkdir(parents=True)
        DelayedSubmission(print, ["n=1"], "hydra.sweep.dir", number, "id", {}).dump(path)
    path.write_bytes(b"half")
    config = {"_target_": execution.SLURM, "submitit_folder": folder}
    kind = LauncherKind(OmegaConf.create(config))
    kind.withdraw({1, 3, 4})
    assert cancelled.read_text() == "12_1\n13\n"
    assert "The job 14 cannot be taken out of the queue" in caplog.text
    LauncherKind({**config, "_target_": execution.SUBMITIT}).withdraw({1})
    assert cancelled.read_text() == "12_1\n13\n"


def test_hydras_launcher_submits_the_number_where_it_is_looked_for() -> None:
    names = list(inspect.signature(SlurmLauncher.__call__).parameters)[1:]
    assert names[execution.JOB_NUMBER] == "job_num"
    assert f"{SlurmLauncher.__module__}.{SlurmLauncher.__name__}" == execution.SLURM


def test_ray_is_required_and_leaves_signals_to_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = RayLauncher({}, {})
    given: Any = {"hydra_context": None, "task_function": None, "config": OmegaConf.create()}
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'needs Ray[\s\S]*pip install "runner\[ray\]"'):
        launcher.setup(**given)
    ray = MagicMock()
    ray.is_initialized.return_value = False
    ray.init = lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)  # As the real one does.
    monkeypatch.setitem(sys.modules, "ray", ray)
    launcher.setup(**given)
    with Interruption().handled():
        launcher.launch([], 0)
        with pytest.raises(InterruptedRunError, match="ended by SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
