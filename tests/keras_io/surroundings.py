"""Callbacks in the style of keras.io that call, ask and judge the model after each epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from sklearn.metrics import jaccard_score, roc_auc_score

from tests.keras_io.supervised import labelled


class TextGenerator(keras.callbacks.Callback):
    """Samples words from the model's logits, and adds each text to a file of JSON lines.

    Args:
      file: the file.
      prompt: the first words.
      top: from how many of the likeliest words to choose.
    """

    def __init__(self, file: str, prompt: Any = (3, 1, 4), top: int = 5) -> None:
        super().__init__()
        self.file, self.prompt, self.top = Path(file), list(prompt), top

    def sample_from(self, logits: Any, drawn: np.random.Generator) -> int:
        logits, indices = ops.top_k(logits, k=self.top)
        shares = np.asarray(ops.softmax(logits), "float64")
        return int(drawn.choice(np.asarray(indices), p=shares / shares.sum()))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        drawn, text = np.random.default_rng(epoch), list(self.prompt)
        while len(text) < 8:
            padded = np.array([text + [0] * (8 - len(text))], "int32")
            logits, _ = self.model(padded)
            text.append(self.sample_from(logits[0][len(text) - 1], drawn))
        with self.file.open("a") as stream:
            stream.write(json.dumps([epoch, text]) + "\n")


class Scores(keras.callbacks.Callback):
    """Computes metrics of scikit-learn after each epoch.

    Args:
      file: the file of JSON lines.
      features: what to predict from.
      labels: the classes, 0 or 1.
    """

    def __init__(self, file: str, features: Any, labels: Any) -> None:
        super().__init__()
        self.file, self.features, self.labels = Path(file), features, labels

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        predicted = self.model.predict(self.features, verbose=0)[:, 0]
        scores = {
            "jaccard": float(jaccard_score(self.labels, predicted > 0.5)),
            "auc": float(roc_auc_score(self.labels, predicted)),
        }
        with self.file.open("a") as stream:
            stream.write(json.dumps([epoch, scores]) + "\n")


def scores(file: str, seed: int) -> Scores:
    """Returns the scores of a model of `supervised.fraud` on the split of a seed."""
    return Scores(file, *labelled(seed))
