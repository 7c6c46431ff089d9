"""The tutorial on PyTorch and Keras: its commands do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.errors import RunnerError
from runner.examples import resnet
from runner.mapping.command import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tutorials/pytorch-to-keras.md").read_text()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_the_tutorial_takes_a_file_of_pytorch_to_a_proven_warm_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [
        line.split()
        for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    (command,) = [command for command in commands if command[0] == "runner"]
    monkeypatch.chdir(tmp_path)
    assert ["python", "-m", resnet.__name__] in [command[:3] for command in commands]
    resnet.main()
    assert capsys.readouterr().out == "resnet.pt\nreference.npz\n"
    main(command[2 : command.index(">")])
    text = capsys.readouterr().out
    shown = PAGE.split("```yaml\n")[1].split("      # ...")[0]
    assert text.startswith(shown)
    Path("scaffolds.yaml").write_text(text)
    script = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    exec(compile(script, "tutorial", "exec"), {})
    assert "agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["keras.applications.ResNet50"], "no checkpoint is named"),
        (["keras.layers.Nothing", "x.pt"], "Nothing"),
        (["no_experiment", "x.pt"], "there is no experiment"),
        (["missing.keras", "x.pt"], "missing.keras cannot be loaded"),
        (["keras.layers.Dense", "units=2", "x.pt", "--hint", "q"], "--hint is 'q'"),
        (["lstm_cnn", "cnn"], "experiment:digits_cnn names an experiment"),
    ],
)
def test_mistakes_are_one_message(arguments: list[str], message: str) -> None:
    with pytest.raises(RunnerError, match=re.escape(message)):
        main(arguments)
