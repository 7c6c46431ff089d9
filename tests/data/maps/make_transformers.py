"""Writes the name lists of the pairs in transformers.yaml.

    python make_transformers.py [NAME...]

Run with keras-hub; $TORCH_PYTHON is the interpreter of transformers and timm (importing PyTorch
beside TensorFlow aborts). Values are never computed: PyTorch builds on its "meta" device.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
LEAVES = {"kernel": "weight", "gamma": "weight", "scale": "weight", "embeddings": "weight"}
LEAVES |= {"beta": "bias", "recurrent_kernel": "weight"}


def tensors(expressions):
    """Prints the tensors of every source as JSON; sorted ones under the names of saved files."""
    import tempfile

    import safetensors
    import timm
    import torch
    import transformers

    class Rnn(torch.nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.rnn = kind(96, 128, num_layers=2, bidirectional=True)
            self.classifier = torch.nn.Linear(256, 4)

    scope = {"timm": timm, "nn": torch.nn, "transformers": transformers, "rnn": Rnn}
    result = {}
    for name, (source, is_sorted) in expressions.items():
        if is_sorted and source.startswith("transformers."):
            model = eval(source, scope)
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                with safetensors.safe_open(f"{folder}/model.safetensors", "pt") as file:
                    listed = [(key, file.get_tensor(key)) for key in sorted(file.keys())]
        else:
            with torch.device("meta"):
                listed = list(eval(source, scope).state_dict().items())
            listed = sorted(listed) if is_sorted else listed
        result[name] = [
            [key, list(value.shape), str(value.dtype).removeprefix("torch.")]
            for key, value in listed
        ]
    print("\n" + json.dumps(result))


def built(expression):
    import keras
    import keras_hub
    from keras_hub.src.models import clip
    from keras_hub.src.models.clip import clip_backbone  # noqa: F401 - its modules are in `clip`

    sys.path.insert(0, str(FOLDER.parents[2]))
    from tests.architectures.models import by_hand, sequences

    keras.backend.clear_session()
    scope = {"keras_hub": keras_hub, "sequences": sequences, "by_hand": by_hand, "clip": clip}
    return eval(expression, scope)


def variables(model):
    """Returns the variables of a model: names, shapes and classes of their layers."""
    from runner.planning.model_variables import eager_variables

    owners = {}
    for layer in model._flatten_layers():
        for variable in [*layer._trainable_variables, *layer._non_trainable_variables]:
            owners[id(variable)] = type(layer).__name__
    return [
        [name, list(variable.shape), owners.get(id(variable))]
        for name, variable in eager_variables(model).items()
        if "seed_generator" not in name
    ]


def compiled(pattern):
    text = re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
    text = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\w*?)", text)
    return re.compile(text + ("(?P<rest_>.+)" if pattern.endswith("/") else ""))


def filled(template, parts):
    numbers = {key: int(part) for key, part in parts.items() if part.isdigit()}
    return re.sub(
        r"\{([^}]+)\}",
        lambda match: parts.get(match[1]) or str(eval(match[1], {}, numbers)),
        template,
    )


def expression(rules, name, parts=None):
    """Returns what the longest rule that matches makes of a name; None where it has no tensor."""
    for pattern, value in sorted(rules.items(), key=lambda rule: -len(rule[0])):
        match = compiled(pattern).fullmatch(name) if pattern else None
        if match is None:
            continue
        inner = {**(parts or {}), **match.groupdict()}
        rest = inner.pop("rest_", "")
        if value is None:
            return None
        if isinstance(value, dict):
            made = expression(value, rest, inner)
        else:
            if value.endswith("."):
                *path, leaf = rest.split("/")
                rest = ".".join([*path, LEAVES.get(leaf, leaf)])
            made = filled(value, inner) + rest
        return None if made is None else filled(rules.get("", ""), parts or {}) + made
    raise SystemExit(f"{name}: no rule")


def step(variable, shape, tensor_shape):
    leaf = variable.rsplit("/")[-1]
    if leaf == "kernel" and len(tensor_shape) == 2 and len(shape) in (2, 3):
        return ["linear"] if len(shape) == 2 else ["linear", "reshape"]
    if leaf == "kernel" and len(shape) == len(tensor_shape) > 2:
        return ["conv"]
    if shape != tensor_shape:
        return ["reshape"]
    return ["norm" if leaf in ("gamma", "beta", "scale") else "same"]


def truth(rules, listed, sources, is_torch):
    shapes = {name: shape for name, shape, _ in sources}
    result = {}
    for name, shape, _ in listed:
        made = expression(rules, name)
        if made is None:
            result[name] = None
            continue
        tensor, *steps = made.split(" | ")
        function, _, operands = made.partition(": ")
        if lost := {*(operands.split() or [tensor])} - shapes.keys():
            raise SystemExit(f"{name}: no tensor {lost}")
        if operands:
            result[name] = {"of": operands.split(), "step": function}
            continue
        transposes = is_torch and not (".c_" in tensor and "weight" in tensor)
        steps = steps or (step(name, shape, shapes[tensor]) if transposes else ["same"])
        parts = next((int(s[6]) for s in steps if s.startswith("split(")), 1)
        if math.prod(shape) * parts != math.prod(shapes[tensor]) and "[2:]" not in steps:
            raise SystemExit(f"{name} {shape}: {tensor} {shapes[tensor]}")
        result[name] = [tensor, *steps]
    return result


def main():
    import tf1_names
    import yaml

    pairs = yaml.safe_load((FOLDER / "transformers.yaml").read_text())["pairs"]
    chosen = {name: pairs[name] for name in sys.argv[1:] or pairs}
    wanted = {
        name: [pair["source"], pair.get("sorted", False)]
        for name, pair in chosen.items()
        if not name.startswith(("tf1-", "keras-"))
    }
    command = [os.environ["TORCH_PYTHON"], __file__, "--tensors"]
    done = subprocess.run(
        command, input=json.dumps(wanted), check=True, stdout=subprocess.PIPE, text=True
    )
    sources = json.loads(done.stdout.splitlines()[-1])
    for name, pair in chosen.items():
        listed = variables(built(pair["model"]))
        family = name.split("-")[0]
        if family == "tf1":
            source = eval(pair["source"], {"tf1": tf1_names})
            sources[name] = [[key, source[key], "float32"] for key in sorted(source)]
        elif family == "keras":
            source = variables(built(pair["source"]))
            sources[name] = [[key, shape, "float32"] for key, shape, _ in source]
        document = {
            "name": name,
            "family": family,
            "model": pair["model"],
            "source": pair["source"],
            "variables": listed,
            "tensors": sources[name],
            "order": "sorted" if pair.get("sorted") or family == "tf1" else "definition",
            "truth": truth(pair["truth"], listed, sources[name], family not in ("tf1", "keras")),
        }
        used = set()
        for made in filter(None, document["truth"].values()):
            used |= {*made["of"]} if isinstance(made, dict) else {made[0]}
        document["ignored"] = [key for key, *_ in sources[name] if key not in used]
        text = json.dumps(document, indent=None).encode()
        (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text, mtime=0))
        without = [key for key, made in document["truth"].items() if made is None]
        print(name, len(listed), len(sources[name]), document["ignored"][:6], without[:4])


if __name__ == "__main__":
    if sys.argv[1:] == ["--tensors"]:
        tensors(json.load(sys.stdin))
    else:
        main()
