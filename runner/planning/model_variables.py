"""Names of the variables of Keras models, modules and optimizers, as plans use them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from runner.errors import ConfigError, Problem, described_type
from runner.internals.keras import Variable, flattened_map, layers_of
from runner.planning.weights_layout import layers_around


def model_variables(model: Any) -> dict[str, tf.Variable]:
    """Returns name -> variable of a Keras model, empty for any other callable.

    Keras names a variable by its path (`model/dense/kernel`) but gives the TensorFlow variable only
    the last part, made unique by a counter (`model/kernel_3`), which changes with the order in
    which layers are built. The path, without the root model's name, is what stays. A functional
    model's own name is not in it: where two have variables of one path, their names go before it.
    A clone has the name of its origin: the attributes that hold the two stand in their place.

    Raises:
      ConfigError: when two variables have one path.
    """
    return {name: variable.value for name, variable in keras_variables(model).items()}


def keras_variables(model: Any) -> dict[str, Any]:
    """Returns name -> `keras.Variable` of a Keras model, with the names of `model_variables`.

    Raises:
      ConfigError: when two variables have one path.
    """
    root = f"{getattr(model, 'name', '')}/"
    variables = getattr(model, "variables", [])
    names = _renumbered([variable.path.removeprefix(root) for variable in variables])
    if twice := _twice(names):
        layers = layers_around(model)
        names = [
            "/".join((*layers.get(id(variable), ()), variable.name)) if name in twice else name
            for name, variable in zip(names, variables, strict=True)
        ]
    if twice := _twice(names):
        holders = _attributes_around(model)
        names = [
            f"{holders[id(variable)]}/{name.partition('/')[2]}"
            if name in twice and id(variable) in holders
            else name
            for name, variable in zip(names, variables, strict=True)
        ]
    if twice := _twice(names):
        raise ConfigError(
            *(
                Problem(
                    f"two variables of the model are named {name}",
                    "two layers of one parent share a name, and so would their tensors",
                    "give the layers distinct names",
                )
                for name in twice
            )
        )
    return dict(zip(names, variables, strict=True))


def which_train(model: Any, variables: Mapping[str, Any]) -> dict[str, bool]:
    """Returns name -> whether the variable trains; of a Keras model, whether `fit` would train it.

    A layer with `trainable = False` decides for its variables, of which TensorFlow's do not know.
    """
    trains = {name: bool(variable.trainable) for name, variable in variables.items()}
    if isinstance(model, keras.Layer):
        trained = {id(variable.value) for variable in model.trainable_variables}
        known = {id(variable.value) for variable in model.variables}
        values = {name: id(tensorflow_variable(variables[name])) for name in variables}
        trains |= {name: value in trained for name, value in values.items() if value in known}
    return trains


def _attributes_around(model: Any) -> dict[int, str]:
    """Returns the `id` of a variable -> the attribute of the model that holds its layer."""
    return {
        id(variable): attribute
        for attribute, layer in vars(model).items()
        if isinstance(layer, keras.Layer)
        for variable in layer.variables
    }


def _twice(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def initializers(model: Any) -> dict[str, str]:
    """Returns name -> class of the initializer that a Keras layer has for its variable.

    A layer keeps it under the name of the argument, such as `kernel_initializer`. A variable whose
    layer keeps none is left out.
    """
    names = {id(variable): name for name, variable in keras_variables(model).items()}
    classes = {}
    for layer in layers_of(model) if isinstance(model, keras.Layer) else ():
        for key, value in vars(layer).items():
            leaf = key.removesuffix("_initializer")
            if leaf == key or not isinstance(value, keras.initializers.Initializer):
                continue
            name = type(value).__name__
            if leaf == "bias" and getattr(layer, "unit_forget_bias", False):
                name += ", forget gate 1"
            for ending in ("", "_kernel"):  # `recurrent_initializer` is for `recurrent_kernel`.
                variable = getattr(layer, f"{leaf}{ending}", None)
                if id(variable) in names:
                    classes[names[id(variable)]] = name
    return classes


# The path of a variable that `add_weight` makes without a name.
_UNNAMED = re.compile(r"(.*/)?variable(?:_(\d+))?")


def _renumbered(names: Sequence[str]) -> list[str]:
    """Numbers unnamed variables within the model; Keras numbers them within the process."""
    numbers = {
        name: int(match[2] or 0)
        for name in names
        if (match := _UNNAMED.fullmatch(name)) is not None
    }
    order = {name: at for at, name in enumerate(sorted(numbers, key=numbers.__getitem__))}
    return [
        f"{name.rpartition('variable')[0]}variable" + (f"_{order[name]}" if order[name] else "")
        if name in order
        else name
        for name in names
    ]


def addresses(model: Any) -> dict[str, str]:
    """Returns variable -> its name with the functional sub-models that it is in.

    Keras leaves their names out of paths: `conv1/kernel` is `resnet50/conv1/kernel` for patterns
    and rules. Variables whose names have them are left out.
    """
    if not isinstance(model, keras.Layer):
        return {}
    parts = [
        (part.name, {id(variable) for variable in part.variables})
        for part in layers_of(model)
        if part is not model and isinstance(part, keras.Model)
    ]
    parts.sort(key=lambda part: -len(part[1]))  # Outer models before inner ones.
    layers = {part.path for part in layers_of(model) if not isinstance(part, keras.Model)}
    named = {}
    for name, variable in keras_variables(model).items():
        within = [part for part, held in parts if id(variable) in held]
        path = name.split("/")[: -2 if variable.path.rpartition("/")[0] in layers else -1]
        while within and path and within[-1] in path:
            path = path[: path.index(within.pop())]
        if within:
            named[name] = "/".join((*within, name))
    return named


def layer_facts(model: Any) -> dict[str, dict[str, Any]]:
    """Returns name -> the facts of a `VariableSpec` about a Keras model's layers and sub-models.

    They are `layer`, where a class derived from one of Keras's counts as Keras's, `flattened`,
    `address` and `axes`.
    """
    if not isinstance(model, keras.Layer):
        return {}
    layers, named = {layer.path: layer for layer in layers_of(model)}, addresses(model)
    facts = {}
    for name, variable in keras_variables(model).items():
        layer = layers.get(variable.path.rpartition("/")[0])
        is_kernel = isinstance(layer, keras.layers.Dense) and variable.name == "kernel"
        facts[name] = {
            "layer": "" if layer is None else _class_name(type(layer)),
            "flattened": flattened_map(layer) if is_kernel else (),
            "address": named.get(name, ""),
            "axes": _einsum_axes(layer) if variable.name == "kernel" else (),
        }
    return facts


def _einsum_axes(layer: Any) -> tuple[int, ...]:
    """Returns the axes of the kernel of an `EinsumDense`: the inputs', then the outputs'."""
    if not isinstance(layer, keras.layers.EinsumDense):
        return ()
    operands, outputs = layer.equation.split("->")
    kernel = operands.split(",")[1].strip()
    return tuple(sorted(range(len(kernel)), key=lambda axis: kernel[axis] in outputs))


def _class_name(kind: type) -> str:
    of_keras = (base for base in kind.__mro__ if base.__module__.startswith("keras.src.layers"))
    base = next(of_keras, keras.Layer)
    return kind.__name__ if base is keras.Layer else base.__name__


def eager_variables(model: Any) -> dict[str, Any]:
    """Returns name -> variable, `keras.Variable` or `tf.Variable`, of anything that holds some.

    Args:
      model: a built Keras model or layer, with the names of `model_variables`; a
        `tf.Module`, whose names are its attributes joined by `/`, as `tf.train.Checkpoint` writes
        them (`encoder/layers/0/w`); or a mapping name -> variable.

    Raises:
      ConfigError: when it is not one of these, holds no variable, or two variables have one name.
    """
    if isinstance(model, Mapping):
        variables = dict(model)
    elif isinstance(model, keras.Layer):
        variables = keras_variables(model)
    elif isinstance(model, tf.Module):
        variables = dict(_of_module(model))
    else:
        raise ConfigError.of(
            f"the model is {described_type(model)}",
            "a Keras model, a tf.Module or a mapping name -> variable can be warm-started",
        )
    for name, variable in variables.items():
        if not isinstance(variable, _VARIABLES):
            raise ConfigError.of(f"{name} is {described_type(variable)}", "it is not a tf.Variable")
    if not variables:
        raise ConfigError.of(
            f"the model {getattr(model, 'name', '')} has no variables yet".replace("  ", " "),
            "it is not built",
            "build it, call it once, or pass input_shape=(None, ...)",
        )
    return variables


_VARIABLES = (tf.Variable, Variable)


def _of_module(module: tf.Module) -> Iterator[tuple[str, Any]]:
    """Yields each variable once, under its shortest name."""
    view = tf.train.TrackableView(module)
    seen = {id(module)}
    pending: list[tuple[str, Any]] = [("", module)]
    for prefix, holder in pending:
        for part, child in view.children(holder).items():
            if id(child) in seen:
                continue
            seen.add(id(child))
            name = f"{prefix}{part}"
            if isinstance(child, _VARIABLES):
                yield name, child
            elif isinstance(child, keras.Layer):
                yield from (
                    (f"{name}/{path}", variable)
                    for path, variable in keras_variables(child).items()
                )
            else:
                pending.append((f"{name}/", child))


def tensorflow_variable(variable: Any) -> tf.Variable:
    """Returns TensorFlow's variable of a `keras.Variable`, and a `tf.Variable` itself."""
    return variable if isinstance(variable, tf.Variable) else variable.value
