"""Devices of trials: which there are, how a sweep divides them, and how processes take them."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from runner.errors import ConfigError
from runner.sweeps import device_sets, launchers
from runner.sweeps.device_sets import TrialDevices, take_devices, trial_devices, visible_devices

FOUR = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
JOBLIB = {"_target_": launchers.JOBLIB, "n_jobs": 8}
SUBMITIT = {"_target_": launchers.SUBMITIT}
RAY = {"_target_": launchers.RAY, "init": {"address": None}}
NVIDIA_SMI = """#!/bin/sh
echo 'GPU 0: NVIDIA A100 (UUID: GPU-5d5ba0d6)'
echo '  MIG 1g.5gb Device 0: (UUID: MIG-c6d4f1ef)'
echo 'GPU 1: NVIDIA A100 (UUID: GPU-7c1a8e4b)'
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for commands, and one for the driver's files, both empty."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(device_sets, "_DRIVER", tmp_path / "gpus")
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("0,1", ["0", "1"]),
        ("2, 0", ["2", "0"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("NoDevFiles", []),
        ("GPU-5d5ba0d6,MIG-c6d4f1ef", ["GPU-5d5ba0d6", "MIG-c6d4f1ef"]),
    ],
)
@pytest.mark.usefixtures("driver")
def test_the_environment_names_devices_as_cuda_reads_it(value: str, names: list[str]) -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": value}) == names


def test_without_a_name_in_the_environment_the_driver_counts_them(driver: Path) -> None:
    assert visible_devices({}) == []
    for name in ("0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"):
        (driver / "gpus" / name).mkdir(parents=True)
    assert visible_devices({}) == ["0", "1", "2"]
    command = driver / "bin" / "nvidia-smi"
    command.write_text(NVIDIA_SMI)
    command.chmod(0o700)
    assert visible_devices({}) == ["0", "1"]


PLANS: list[tuple[int | None, dict[str, Any], TrialDevices]] = [
    (None, {"_target_": launchers.SERIAL}, TrialDevices()),
    (1, JOBLIB, TrialDevices("1 of 0,1,2,3", ("0", "1", "2", "3"), {"n_jobs": 4})),
    (2, {**JOBLIB, "n_jobs": 2}, TrialDevices("2 of 0,1,2,3", ("0,1", "2,3"), {"n_jobs": 2})),
    (3, SUBMITIT, TrialDevices("1 trials at a time", ("0,1,2",))),
    (2, RAY, TrialDevices("from Ray", (), {"remote.num_gpus": 2, "init.num_gpus": 4})),
    (
        8,
        {"_target_": launchers.RAY, "init": {"address": "auto"}},
        TrialDevices("8 for each trial, from Ray", (), {"remote.num_gpus": 8}),
    ),
    (8, {"_target_": launchers.SLURM}, TrialDevices("from Slurm", (), {"gpus_per_node": 8})),
]


@pytest.mark.parametrize(("count", "launcher", "planned"), PLANS)
def test_how_trials_get_devices(
    count: int | None, launcher: dict[str, Any], planned: TrialDevices
) -> None:
    actual = trial_devices(count, launcher, FOUR)
    assert planned.line in actual.line
    assert (actual.sets, actual.launcher) == (planned.sets, planned.launcher)


REFUSED: list[tuple[int, dict[str, Any], dict[str, str], str]] = [
    (1, {"_target_": launchers.SERIAL}, FOUR, "one after the other in one process"),
    (1, {**JOBLIB, "n_jobs": 1}, FOUR, "one trial at a time"),
    (3, JOBLIB, FOUR, "4 GPUs and hydra.launcher.n_jobs=8 allow one trial at a time"),
    (5, SUBMITIT, FOUR, "shows 4 GPUs, by its driver and CUDA_VISIBLE_DEVICES=0,1,2,3"),
    (1, RAY, {}, "shows 0 GPUs, by its driver and no CUDA_VISIBLE_DEVICES"),
]


@pytest.mark.parametrize(("count", "launcher", "environ", "cause"), REFUSED)
@pytest.mark.usefixtures("driver")
def test_what_is_refused(
    count: int, launcher: dict[str, Any], environ: dict[str, str], cause: str
) -> None:
    with pytest.raises(ConfigError, match=cause):
        trial_devices(count, launcher, environ)


def test_a_process_takes_a_free_set_and_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(device_sets, "_taken", {})
    others = ExitStack()
    for name in ("1", "2"):  # One device of each set.
        others.enter_context(FileLock(tmp_path / f"{socket.gethostname()}-{name}.lock"))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        others.close()

    monkeypatch.setattr("time.sleep", wait)
    assert take_devices(tmp_path, ["0,1", "2,3"]) == "0,1"
    assert len(waits) == 1
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    # Hydra restores the environment after a trial, and the next one has the same devices.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert take_devices(tmp_path, ["0,1", "2,3"]) == "0,1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    monkeypatch.setattr(device_sets, "_taken", {})
    assert take_devices(tmp_path, ["0,1", "2,3"]) == "2,3"
