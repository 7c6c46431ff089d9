from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from runner.checkpoints.reader import CheckpointSpec, TensorSpec
from runner.commands import inspect_checkpoint
from runner.commands.command_line import main
from runner.commands.inspect_checkpoint import kinds_of
from runner.console import Screen
from runner.errors import ConfigError
from tests.conformance.goldens import save_bundle, save_npz
from tests.support import torch_files

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return save_npz(
        tmp_path / "model.npz",
        **{
            "dense/kernel": np.array([[1, 2], [3, -4]], np.float32),
            "dense/kernel/Adam": np.array([[0, 0], [0, np.nan]], np.float32),
            "dense/kernel/Adam_1": np.array([0], np.float32),
            "norm/moving_mean": np.array([1], np.float32),
            "global_step": np.int64(12),
        },
    )


def _shown(*arguments: str, terminal: bool = False, width: int = 0) -> tuple[int, str]:
    file = io.StringIO()
    terminal |= width > 0
    console = Console(file=file, force_terminal=terminal, width=width or 100, highlight=False)
    parser = argparse.ArgumentParser()
    inspect_checkpoint.add_arguments(parser)
    code = inspect_checkpoint.run(parser.parse_args(arguments), Screen(console))
    return code, file.getvalue()


def _rows(text: str) -> dict[str, list[str]]:
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) > 1}


@pytest.mark.parametrize("count", [1, 1_100])
@pytest.mark.parametrize("terminal", [False, True])
def test_names_cannot_steer_a_terminal(count: int, terminal: bool, tmp_path: Path) -> None:
    nan, others = np.array([np.nan]), {f"x{at}": np.ones(1) for at in range(count)}
    path = save_npz(tmp_path / "odd.npz", **{"a\x1b[2Jb\nc\x9b\u202e/é d": nan}, **others)
    shown = [_shown(path, "--stats", width=300 * terminal)[1]]
    shown.append(_shown(path, save_npz(tmp_path / "x.npz", y=np.ones(1)), width=300 * terminal)[1])
    for text in shown:
        assert r"a\x1b[2Jb\nc\x9b\u202e/é d" in text
        assert not re.search(r"\x1b\[2J|[\x9b\u202e]", text)


def test_a_checkpoints_tensors_are_listed(model: str) -> None:
    code, text = _shown(model)
    assert code == 0
    first, path, blank, *_ = text.splitlines()
    assert first == (
        "NumPy archive, step 12: 2 model variables (20 B), 2 optimizer slots (20 B), "
        "1 global step (8 B)"
    )
    assert path == model
    assert not blank, "a digest is shown on request: all of many a file is read for it"
    rows = _rows(text)
    assert rows["tensor"] == ["shape", "bytes", "class"]
    assert rows["dense/kernel"] == ["2x2", "16", "weight"]
    assert rows["2 optimizer slots"] == ["20", "optimizer slot"]
    assert rows["norm/moving_mean"] == ["1", "4", "batch norm"]
    assert rows["global_step"] == ["scalar int64", "8", "global step"]
    text = _shown(model, "--all", "--digest")[1]
    assert re.fullmatch("sha256:[0-9a-f]{64}", text.splitlines()[2])
    assert _rows(text)["dense/kernel/Adam"] == ["2x2", "16", "optimizer slot"]


def test_a_narrow_terminal_gets_two_lines_a_tensor(model: str) -> None:
    lines = [line.rstrip() for line in _shown("--stats", model, width=40)[1].splitlines()]
    at = lines.index("dense/kernel  2x2")
    assert lines[at + 1] == "  bytes 16, weight, min -4, max 3, mean"


def test_statistics_are_shown_on_request(model: str) -> None:
    rows = _rows(_shown(model, "--stats")[1])
    assert rows["tensor"][3:] == ["min", "max", "mean", "NaN"]
    assert rows["dense/kernel"][3:] == ["-4", "3", "0.5", "0"]
    assert rows["2 optimizer slots"][2:] == ["1"], "NaN is not hidden"
    rows = _rows(_shown(model, "--stats", "--all")[1])
    assert rows["dense/kernel/Adam"][3:] == ["0", "0", "0", "1"]


def test_aliases_are_shown(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["layers/batch_normalization/vars/0"] = np.array([1], np.float32)
        file["layers/batch_normalization/vars/1"] = np.array([1], np.float32)
        file["layers/batch_normalization/vars"].attrs["name"] = "norm"
    path = "layers/batch_normalization/vars/0"
    assert _rows(_shown(str(tmp_path / "w.h5"))[1])["norm/moving_mean"][2:] == ["batch norm"]
    assert _rows(_shown(str(tmp_path / "w.h5"), "--all")[1])["norm/moving_mean"][3:] == [path]


def test_tied_tensors_have_one_row(tmp_path: Path) -> None:
    file = str(ROOT / "tests" / "data" / "torch" / "state_dict-2.15.pt")
    text = _shown(file)[1]
    assert " head.0.weight = tied.weight " in text
    assert " tied.weight " not in text.replace("= tied.weight", "")


def test_a_terminal_gets_colour_and_a_pipe_none(model: str) -> None:
    assert "\x1b[" in _shown(model, "--stats", terminal=True)[1]
    assert "\x1b[" not in _shown(model, "--stats")[1]


def test_names_are_neither_folded_in_a_pipe_nor_interpreted(tmp_path: Path) -> None:
    name = "[bold]" + "/".join(["layer"] * 60)
    assert name in _shown(save_npz(tmp_path / "m.npz", **{name: 1.0}))[1]


def test_two_checkpoints_are_compared(model: str, tmp_path: Path) -> None:
    code, text = _shown(model, model)
    assert (code, text.splitlines()[0]) == (0, "no difference")
    other = save_npz(
        tmp_path / "other.npz",
        **{"dense/kernel": np.array([[1, 2], [3, 4]], np.float32), "global_step": np.int64(12)},
    )
    code, text = _shown(model, other)
    assert code == 1
    assert _rows(text)["dense/kernel"] == ["1 of 4 values, by up to 8"]
    assert _rows(text)["norm/moving_mean"] == ["only in the first"]
    assert text.splitlines()[0] == "4 tensors differ"


@pytest.mark.parametrize("flags", [["--stats"], ["--all", "--digest"], ["--provenance"]])
def test_what_lists_one_checkpoint_does_not_go_with_two(model: str, flags: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"^{' and '.join(flags)} with OTHER\n"):
        _shown(model, model, *flags)


def test_a_directory_and_a_choice_in_it(tmp_path: Path) -> None:
    for step in (1, 2):
        save_bundle(tmp_path / f"m-{step}", {"t": [float(step)]})
    code, text = _shown(str(tmp_path), "--which", "1", "--stats")
    assert (code, text.splitlines()[1]) == (0, str(tmp_path / "m-1"))
    assert _rows(text)["t"][3] == "1"


@pytest.mark.parametrize("paths", [[], ["a", "b", "c"]])
def test_one_or_two_paths_are_taken(paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["inspect", *paths])
    assert caught.value.code == 2
    assert "usage: runner inspect" in capsys.readouterr().err


def test_a_wrong_path_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.npz").touch()
    assert main(["inspect", str(tmp_path / "modl.npz")]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    first, *_, last = done.err.splitlines()
    assert first == f"runner: there is no checkpoint at {tmp_path}/modl.npz"
    assert last == f"  choices: {tmp_path}/model.npz"


FIRST = "NumPy archive: 99 model variables (792 B)\n"


def test_a_pipe_that_closes_early_is_no_error(tmp_path: Path) -> None:
    many = save_npz(tmp_path / "m.npz", **{f"{number}{'x' * 2000}": 1.0 for number in range(99)})
    command = f'"{sys.executable}" -m runner inspect "{many}" | head -n 1'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, FIRST, "")


KINDS = {
    "conv/kernel": "weight",
    "conv/kernel/Adam_1": "optimizer slot",
    "conv/kernel/ExponentialMovingAverage": "moving average",
    "norm/moving_variance": "batch norm",
    "norm/count": "weight",
    "beta1_power": "optimizer slot",
    "global_step": "global step",
    # Runs.
    "Adam/iterations": "optimizer slot",
    "Adam/loss_scale/dynamic_scale": "optimizer slot",
    "input/IteratorV2:0_STATE": "input position",
    "metrics/loss/total": "metric variable",
    "dropout/seed_generator_state": "random state",
    # Keras's files.
    "optimizer/vars/0": "optimizer slot",
    "d_optimizer/vars/2": "optimizer slot",
    "optimizer_weights/SGD/iter": "optimizer slot",
    "layers/dropout/seed_generator/vars/0": "random state",
    # Object-based checkpoints of TensorFlow.
    "step": "global step",
    "g/_state_var": "random state",
    "optimizer/_iterations": "optimizer slot",
    "optimizer/_trainable_variables/0": "weight",
    "gan/opt/_iterations": "optimizer slot",
    "gan/opt/_variables/1": "optimizer slot",
    "gan/opt/_trainable_variables/1": "weight",
    "keras_api/metrics/0/total": "metric variable",
    # PyTorch and Flax.
    "model.norm.running_var": "batch norm",
    "norm.num_batches_tracked": "batch norm",
    "params/Dense_0/kernel": "weight",
    "batch_stats/BatchNorm_0/mean": "batch norm",
    "opt_state/0/mu/Dense_0/kernel": "optimizer slot",
}


def test_what_tensors_hold() -> None:
    dtypes = {name: "variant" if name.endswith("_STATE") else "float32" for name in KINDS}
    tensors = {name: TensorSpec(name, (), dtype) for name, dtype in dtypes.items()}
    spec = CheckpointSpec("path", None, tensors, "format", str)
    assert kinds_of(spec) == KINDS


def test_the_alias_tells_where_the_name_does_not() -> None:
    name, alias = "layers/batch_normalization/vars/2", "norm/moving_mean"
    tensors = {name: TensorSpec(name, (), "float32")}
    spec = CheckpointSpec("path", None, tensors, "format", str, aliases={alias: name})
    assert kinds_of(spec) == {name: "batch norm"}


def _with_input(folder: Path, value: float) -> str:
    """A checkpoint with a position in a tf.data input, as a run saves it."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(tf.data.Dataset.range(3))
        state = tf.data.experimental.make_saveable_from_iterator(iterator)
        kernel = tf.compat.v1.get_variable("kernel", initializer=[value])
        session.run([iterator.initializer, kernel.initializer])
        saver = tf.compat.v1.train.Saver({"kernel": kernel, state.name: state})
        return str(saver.save(session, str(folder / "model.ckpt")))


def test_a_position_in_the_training_data_is_listed_without_values(tmp_path: Path) -> None:
    one, other = (_with_input(tmp_path / name, float(len(name))) for name in ("a", "bb"))
    code, text = _shown(one, "--stats")
    assert code == 0
    rows = _rows(text)
    (state,) = (name for name in rows if name.endswith("_STATE"))
    assert rows[state] == ["2 variant", "input position"]
    assert rows["kernel"][2:] == ["weight", "1", "1", "1", "0"]
    code, text = _shown(one, other)
    assert (code, "1 tensor differs" in text) == (1, True)


def test_tensors_that_cannot_be_read_are_listed_and_not_compared(tmp_path: Path) -> None:
    sparse = torch_files.Pickled("torch._utils._rebuild_sparse_tensor", ())
    path = torch_files.save(tmp_path / "m.pt", {"a": torch_files.tensor(), "b": sparse})
    code, text = _shown(path, "--stats")
    assert code == 0
    assert "sparse_tensor of PyTorch" in text
    code, text = _shown(path, torch_files.save(tmp_path / "other.pt", {"b": sparse}))
    assert code == 1
    assert "not compared: sparse_tensor of PyTorch" in text
