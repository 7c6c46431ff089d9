"""A checkpoint with exchanged tensors contradicts its reference: what is wrong is not decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import runner
from runner.mapping.proposal import Proposal
from runner.planning.model_variables import eager_variables
from tests.architectures.test_architectures import CASES, model_of
from tests.unit.mapping.test_values import Arrays, files_of, written

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def mapped(name: str, exchanged: dict[str, str], folder: Path) -> tuple[Proposal, Arrays]:
    """Maps a case, some of whose tensors are called as others; returns the warm-started values."""
    tensors, reference = files_of(name)
    tensors |= {one: tensors[other] for one, other in exchanged.items()}
    model = model_of(CASES[name], small=True)
    checkpoint, recorded = written(folder, tensors, reference)
    proposal = runner.propose(model, checkpoint, reference=recorded)
    runner.warm_start(model, proposal.scaffolds)
    return proposal, {name: v.numpy() for name, v in eager_variables(model).items()}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("torchvision-resnet50", "layer2.0.downsample.1.bias", "layer2.1.bn3.running_var"),
        ("torchvision-resnet50", "layer1.0.bn3.weight", "layer1.0.bn3.bias"),
        ("pytorch-bidirectional_gru", "rnn.bias_ih_l1", "rnn.bias_hh_l1"),
        ("pytorch-bidirectional_gru", "rnn.weight_hh_l0", "rnn.weight_hh_l1"),
        ("pytorch-bidirectional_lstm", "rnn.weight_hh_l1", "rnn.weight_hh_l1_reverse"),
    ],
)
def test_no_variable_is_decided_and_wrong(name: str, one: str, other: str, tmp_path: Path) -> None:
    folders = [tmp_path / part for part in ("right", "wrong")]
    for folder in folders:
        folder.mkdir()
    _, right = mapped(name, {}, folders[0])
    proposal, values = mapped(name, {one: other, other: one}, folders[1])
    (correspondence,) = proposal.correspondences.values()
    wrong = {name for name, value in values.items() if not np.allclose(value, right[name])}
    assert wrong <= {*(correspondence.undecided or ())}
    assert proposal.is_certain is False


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("torchvision-resnet50", "layer2.1.bn1", "layer2.1.bn2"),
        ("vgg-small", "features.2", "features.7"),
        ("timm-mobilenetv2_100", "bn1", "blocks.0.0.bn1"),
        ("hugging_face-gpt2-by_hand", "h.1.ln_2", "ln_f"),
    ],
)
def test_a_right_map_of_a_file_with_exchanged_modules_says_so(
    name: str, one: str, other: str, tmp_path: Path
) -> None:
    leaves = ("weight", "bias", "running_mean", "running_var")
    tensors, _ = files_of(name)
    pairs = {f"{one}.{leaf}": f"{other}.{leaf}" for leaf in leaves if f"{one}.{leaf}" in tensors}
    exchanged = pairs | {other: one for one, other in pairs.items()}
    proposal, _ = mapped(name, exchanged, tmp_path)
    assert proposal.proof is not None
    assert all(output.agrees for output in proposal.proof.outputs)
    *_, doubt = proposal.doubts()
    assert "the checkpoint and the reference do not belong together" in str(doubt)
    assert "record a reference of this checkpoint's model" in str(doubt)
