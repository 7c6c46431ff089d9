"""Names the tensors in Keras's files for a model: by the model's names, or by their places in it.

A weights file numbers the variables of a layer: `layers/conv2d/vars/0`. It has the names of layers,
but neither the names of variables nor their scopes, so these come from the model; the names of an
optimizer's numbered variables come from the model's optimizer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from runner.checkpoints.quantization import is_narrow
from runner.checkpoints.reader import CheckpointSpec
from runner.config.schema import RestorationConfig, ScaffoldConfig
from runner.internals.keras import automatic_names, saved_groups, trainable_by_layer
from runner.planning.file_order import file_order
from runner.planning.optimizer_slots import OPTIMIZER, Slots
from runner.planning.places import Ordinals, Places, WeightsLayout
from runner.planning.plan import LocatedSources, RestorationPlan, make_plan
from runner.planning.variables import VariableSpec

_LOGGER = logging.getLogger(__name__)


def plan_located(
    specs: Sequence[VariableSpec],
    scaffolds: Mapping[str, ScaffoldConfig],
    located: LocatedSources,
    *,
    rules: RestorationConfig,
    layout: Callable[[], WeightsLayout] | None = None,
    slots: Slots | None = None,
) -> RestorationPlan:
    """Returns the plan of a warm start from located checkpoints, see `make_plan`.

    Args:
      specs: the variables.
      scaffolds: name -> scaffold.
      located: their checkpoints.
      rules: for the warm start as a whole.
      layout: returns where Keras saves the model's variables, for the names of the tensors in its
        files; called only if there are such files, as it takes 1 ms per layer. None for a model
        that is not Keras's.
      slots: of the model's optimizer; None if they are not restored.
    """
    files = {name: spec for name, spec in located.specs.items() if spec and _is_of_keras(spec)}
    if files and layout is not None:
        known = layout()
        named = {name: _named(spec, known, slots) for name, spec in files.items()}
        located = replace(located, specs={**located.specs, **named})
    return make_plan(specs, scaffolds, located, collision=rules.collision, expect=rules.expect)


def _is_of_keras(spec: CheckpointSpec) -> bool:
    return bool(spec.layers or spec.order)


def places(spec: CheckpointSpec, model: WeightsLayout) -> dict[str, str | None]:
    """Returns variable -> the tensor in its place in a file with the names of a Keras model.

    It is empty where places leave it open, and None where names tell.
    """
    place = _named(spec, model, None).place
    return {name: place(name, name) for name in model.order} if place else {}


def _named(spec: CheckpointSpec, model: WeightsLayout, slots: Slots | None) -> CheckpointSpec:
    if not spec.layers:
        return replace(spec, place=Ordinals(model, spec).place)
    places = Places(model, _of_file(spec))
    aliases = {**places.within("", ""), **places.of_parts(), **spec.aliases}
    spec = replace(
        spec,
        aliases={name: aliases[name] for name in aliases if name not in spec.tensors},
        place=places.place,
    )
    return spec if slots is None else slots.named(spec, file_order(places, spec))


def weights_layout(model: Any, variables: Mapping[str, Any]) -> WeightsLayout:
    """Returns the layout of the weights file of a Keras model with these variables, by name."""
    names = {id(variable): name for name, variable in variables.items()}
    layers, groups = _groups(model)
    return WeightsLayout(
        layers,
        {
            group: {number: names[id(variable)] for number, variable in held.items()}
            for group, held in groups.items()
            if held and all(id(variable) in names for variable in held.values())
        },
        automatic_names(model),
        tuple(
            tuple(names[id(variable)] for variable in held if id(variable) in names)
            for held in trainable_by_layer(model)
        ),
        tuple(variables),
        frozenset(name for name, held in variables.items() if is_narrow(dtype_name(held))),
    )


def dtype_name(variable: Any) -> str:
    """Returns the name of the type of a variable of Keras or TensorFlow."""
    return str(getattr(variable.dtype, "name", variable.dtype))


def layers_around(model: Any) -> dict[int, tuple[str, ...]]:
    """Returns the `id` of a Keras variable of a model -> the names of the layers that it is in."""
    layers, groups = _groups(model)
    layout = WeightsLayout(layers, {})
    return {
        id(variable): layout.path(group)
        for group, held in groups.items()
        for variable in held.values()
    }


def _groups(model: Any) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Returns the layers of a model as in `WeightsLayout`, and group -> number -> variable."""
    try:
        with tf.Graph().as_default():  # Keras reads every attribute, and some may compute.
            groups = saved_groups(model)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        # A layer's own `save_own_variables` may need values, which a graph has none of.
        _LOGGER.debug("%s cannot be saved here: %r", model, error)
        return {}, {}
    layers = {group: name for group, (name, _) in groups.items() if group and name}
    return layers, {group: held for group, (_, held) in groups.items()}


def _of_file(spec: CheckpointSpec) -> WeightsLayout:
    variables: dict[str, dict[str, str]] = {}
    for tensor in spec.tensors:
        group, _, number = f"/{tensor}".rpartition("/vars/")
        if number.isdecimal() and not group.startswith(f"/{OPTIMIZER}"):
            variables.setdefault(group.removeprefix("/"), {})[number] = tensor
    layers = {
        group: name
        for group, name in spec.layers.items()
        if group and f"{group}/".partition("/")[0] != OPTIMIZER
    }
    narrow = frozenset(name for name, held in spec.tensors.items() if is_narrow(held.dtype))
    return WeightsLayout(layers, variables, narrow=narrow)
