"""The tutorial on PyTorch and Keras: its commands do what it says."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import keras
import pytest

from runner.commands.command_line import run_command
from runner.errors import PlanError, RunnerError
from runner.examples import resnet
from runner.mapping.named_model import model_named
from tests.support.command_line import in_process

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tutorials/pytorch-to-keras.md").read_text()
FENCED = re.compile(r'```(\w+)(?: title="(.*?)")?\n(.*?)```', re.DOTALL)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_the_tutorial_takes_a_file_of_pytorch_to_a_proven_warm_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = in_process(tmp_path, monkeypatch, capfd)
    shown = PAGE.split("```yaml\n")[1].split("      # ...")[0]
    proven = []
    for language, title, block in FENCED.findall(PAGE):
        if title:
            Path(title).parent.mkdir(parents=True, exist_ok=True)
            Path(title).write_text(block)
        if language == "python" and "runner" in block:
            exec(compile(block, "tutorial", "exec"), {})
            assert "agree" in capfd.readouterr().out
        for line in block.splitlines() if language == "sh" else ():
            words, _, written = line.partition(" > ")
            match words.partition("#")[0].split():
                case ["python", "-m", module]:
                    assert module == resnet.__name__
                    resnet.main()
                    assert capfd.readouterr().out == "resnet.pt\nreference.npz\n"
                case ["python", script]:
                    runpy.run_path(script)
                case ["runner", "map", *arguments]:
                    done = command("map", *arguments)
                    assert done.code == 0
                    assert done.out.startswith(shown)
                    Path(written).write_text(done.out)
                case ["runner", *arguments]:
                    done = command(*arguments, "train.steps=2", "tracking=none")
                    assert done.code == 0, done.err
                    proven.append("proof: reference.npz agrees" in done.out)
                case ["cat", _]:
                    pass
                case _:
                    subprocess.run(line, shell=True, check=True)
    assert proven == [True, True]
    again = ["map", "flowers", "resnet", "--config-dir", "conf", "--reference", "reference.npz"]
    done = command(*again)
    assert (done.code, "proof: reference.npz agrees" in done.out) == (0, True), done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keras.applications.ResNet50"], "no checkpoint is named"),
        (["keras.layers.Nothing", "x.pt"], "Nothing"),
        (["no_experiment", "x.pt"], "there is no experiment"),
        (["missing.keras", "x.pt"], "cannot be loaded\n  cause: there is no such file"),
        (["keras.layers.Dense", "units=[2", "x.pt"], "MODEL.units is '[2'"),
        (["keras.layers.Dense", "x.pt", "--refrence", "y"], "has no option --refrence"),
        (["math.nan", "x.pt"], "that is a float, which cannot be called"),
        (["keras.layers.Dense", "units=2", "x.pt", "--hint", "q"], "--hint is 'q'"),
        (["lstm_cnn", "cnn"], "experiment:digits_cnn names an experiment"),
        (["lstm_cnn", "cnn", "--config-dir", "nowhere"], "--config-dir is nowhere"),
    ],
)
def test_mistakes_are_one_message(arguments: list[str], message: str) -> None:
    with pytest.raises(RunnerError, match=re.escape(message)):
        run_command("map", *arguments)


def test_arguments_of_a_model_are_read_as_overrides_are() -> None:
    settings = ["epsilon=1e-3", "axis=[1, 2]", "name=norm", "scale=false"]
    model, _ = model_named("keras.layers.LayerNormalization", settings)
    assert (model.epsilon, [*model.axis], model.name, model.scale) == (1e-3, [1, 2], "norm", False)


def test_a_file_with_an_equals_sign_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ROOT / "tests/architectures/small/cnns.resnet50.pt"
    shutil.copy(source, tmp_path / "epoch=3-step=10.ckpt")
    monkeypatch.chdir(tmp_path)
    reference = str(source.with_suffix(".npz"))
    model = ["tests.architectures.models.cnns.resnet50", "small=true"]
    run_command("map", *model, "epoch=3-step=10.ckpt", "--reference", reference)
    assert "checkpoint: epoch=3-step=10.ckpt" in capsys.readouterr().out


def test_without_a_reference_names_make_a_proposal(capsys: pytest.CaptureFixture[str]) -> None:
    source = str(ROOT / "tests/architectures/small/cnns.resnet50.pt")
    with pytest.raises(PlanError, match="have a tensor by their names alone"):
        run_command("map", "tests.architectures.models.cnns.resnet50", "small=true", source)
    assert "A proposal: 70 variables of 77" in capsys.readouterr().out


class Own(keras.layers.Layer):
    def call(self, x: object) -> object:
        return x


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_saved_model_with_a_layer_of_its_own_names_it(tmp_path: Path) -> None:
    file = tmp_path / "model.keras"
    keras.Sequential([keras.Input((2,)), Own(), keras.layers.Dense(1)]).save(file)
    with pytest.raises(RunnerError, match="a layer of the class Own"):
        run_command("map", str(file), "x.pt")
