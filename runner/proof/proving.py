"""`prove`: runs a Keras model on the inputs of a reference, and compares its outputs and layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
from numpy.typing import NDArray

from runner.errors import ConfigError, described_type, ranked
from runner.internals.keras import layers_of, recorded_calls, replaced_calls
from runner.planning.comparison import (
    LOCAL,
    NOT_FINITE,
    TOLERANCES,
    Comparison,
    Proof,
    closest,
    compare,
)
from runner.planning.model_variables import keras_variables
from runner.planning.plan import RestorationPlan
from runner.proof.causes import Causes, Compared, Reader
from runner.proof.feeding import (
    Values,
    activation_of,
    array_of,
    by_name,
    model_inputs,
    recorded_names,
)
from runner.proof.findings import (
    channels_first_flattened,
    common_settings,
    differing_settings,
    further_causes,
    origins_of_variables,
    other_examples,
    source_config,
    unproven,
)
from runner.proof.local_comparison import NEAR, Layer, LocalComparison
from runner.proof.precision import full_precision, least_precise
from runner.proof.reference import Reference, read_reference
from runner.proof.source_modules import counterparts, mixed_modules, of_module

# Below this part of the tolerance, differences are roundings.
_ROUNDING = LOCAL / 10
# How many changes of tensors are tried for what differs, and for what might be closer.
_MOST, _MOST_OF_SIBLINGS = 120, 12


def prove(
    model: Any,
    reference: str | Path | Reference,
    plan: RestorationPlan | None = None,
    *,
    scaffold: str = "",
) -> Proof:
    """Compares what a warm-started Keras model computes with what the source of its weights does.

    The model computes the inputs of the reference in inference mode, float32 without TF32.

    Args:
      model: a Keras model or layer, built and warm-started.
      reference: an `.npz` file with inputs, outputs and activations of the source, recorded as in
        docs/how-to/prove.md.
      plan: where the model's values come from, as `warm_start` returns it. Without one, outputs
        alone are compared.
      scaffold: compares the part of the model alone, one layer, to which this scaffold's checkpoint
        gives values.

    Returns:
      The proof; `agrees` is its verdict, and `first_difference` the first layer that differs.

    Raises:
      CheckpointError: when the reference cannot be read, or the model takes other inputs or gives
        other outputs.
      ConfigError: when the model is not Keras's, or the plan has no such scaffold.
    """
    if not isinstance(model, keras.Layer):
        state = f"the model is {described_type(model)}"
        raise ConfigError.of(state, "a proof compares the layers of a Keras model")
    if scaffold and scaffold not in (names := plan.sources if plan else {}):
        cause = "the plan of the warm start names others" if plan else "only a plan names scaffolds"
        state = f"there is no scaffold {scaffold!r}"
        raise ConfigError.of(state, cause, choices=ranked(scaffold, names))
    if not isinstance(reference, Reference):
        reference = read_reference(str(reference))
    return _Proving(model, reference, plan, scaffold).proof()


class _Proving:
    """One proof of a model; see `prove` for the arguments."""

    def __init__(
        self, model: Any, reference: Reference, plan: RestorationPlan | None, scaffold: str
    ) -> None:
        self._reference, self._plan, self._scaffold = reference, plan, scaffold
        self._names = {id(variable): name for name, variable in keras_variables(model).items()}
        self._tensors = _tensors(plan, scaffold) if plan else {}
        self._part = self._smallest(model) if scaffold else model
        self._layers = {self._path(model, layer): layer for layer in layers_of(self._part)}
        computing = [layer for layer in self._layers.values() if _is_leaf(layer)]
        self._dtype = least_precise(computing, reference)
        self._tolerance = float(reference.metadata.get("tolerance", TOLERANCES[self._dtype]))
        is_recorded = "tolerance" in reference.metadata
        self._local = self._tolerance if is_recorded else LOCAL * self._tolerance

    def proof(self) -> Proof:
        reference = self._reference
        inputs = model_inputs(self._part, reference)
        with full_precision():
            causes = Causes(partial(self._compared, inputs))
        layers = causes.layers(self._module_of)
        proof = Proof(
            reference=reference.path,
            digest=reference.digest,
            scaffold=self._scaffold,
            dtype=self._dtype,
            tolerance=self._tolerance,
            outputs=tuple(causes.before.outputs),
            layers=tuple(layers),
            modules=len(reference.activations),
            compared=len({one.module for one in causes.before.layers}),
            contradiction=causes.contradiction,
        )
        settings = {layer.layer: self._settings(layer) for layer in layers}
        if proof.agrees:
            return replace(proof, findings=common_settings(settings))
        first = proof.first_difference
        lines = [*settings[first.layer], *self._flatten_order(first, inputs)] if first else []
        lines += other_examples(reference)
        lines += further_causes([one for one in layers if one.layer in causes.guilty])
        if not causes.undone:
            lines += unproven([path for path in causes.unproven if path != (first and first.layer)])
        # A layer that is near differs itself, as by its epsilon.
        rest = (one for one in layers if not one.agrees and one.layer not in causes.guilty)
        is_near = (without := next(rest, None)) is not None and without.relative < NEAR
        doubtful = {*causes.guilty} if is_near else {*causes.guilty, *causes.unproven}
        lines += self._origins(first) if first else ()
        return replace(proof, findings=tuple(lines), doubtful=tuple(sorted(doubtful)))

    def _compared(self, inputs: Any) -> Compared:
        """Compares the model with its present values."""
        ranks, values = self._called(inputs)
        outputs = [*self._compared_outputs(values)]
        local = LocalComparison(self._part, inputs, [*self._counterparts(ranks)], self._local)
        del values
        # Such a layer is not the first: another one may be why the outputs differ.
        layers = sorted(local.compared(), key=self._is_of_another_place)
        if all(one.agrees for one in outputs) and outputs:
            layers = [one for one in layers if not self._is_of_another_place(one)]
        return Compared(outputs, layers, local, [*self._readers(layers, local, outputs, inputs)])

    def _called(self, inputs: Any) -> tuple[dict[int, int], Any]:
        """Calls the model; returns the rank of each layer's output, by `id`, and its outputs."""
        ranks: dict[int, int] = {}

        def on_call(original: Any, layer: Any, *arguments: Any, **keywords: Any) -> Any:
            output = original(layer, *arguments, **keywords)
            first = keras.tree.flatten(output)[:1]
            ranks.setdefault(id(layer), array_of(first[0]).ndim if first else 0)
            return output

        with replaced_calls(on_call):
            return ranks, self._part(inputs, training=False)

    def _is_of_another_place(self, compared: Comparison) -> bool:
        """Whether a module does more than the layer that has its tensors, where outputs agree.

        A layer of one's own, such as a scale, may be a part of what the module computes. It has
        handed on what it computes, so that a layer behind it would differ if its values were wrong.
        """
        is_own = not type(self._layers[compared.layer]).__module__.startswith("keras.")
        return is_own and not compared.agrees and compared.relative > NEAR and not compared.note

    def _readers(
        self,
        compared: Sequence[Comparison],
        local: LocalComparison,
        outputs: Sequence[Comparison],
        inputs: Any,
    ) -> Iterator[Reader]:
        """Yields the layers, or the outputs, that tensors of others may have made differ."""
        variables = {path: self._variables_of(layer) for path, layer in self._layers.items()}
        variables = {path: some for path, some in variables.items() if some}
        beside, proven = local.siblings, local.proven(compared)
        siblings = {path: some for path, some in variables.items() if path in beside}
        suspects = {path: some for path, some in variables.items() if path not in proven}
        rounding = _ROUNDING * TOLERANCES[self._dtype]
        for one in compared:
            if one.relative > rounding:
                some, most = (siblings, _MOST_OF_SIBLINGS) if one.agrees else (suspects, _MOST)
                some = some if one.note in ("", NOT_FINITE) else {}
                yield Reader(one, partial(local.run, one), local.tolerance, some, most)
        is_same_head = not any("shapes" in one.note for one in outputs)
        for one in outputs if is_same_head else ():
            if not one.agrees:
                run, output = partial(self._run, inputs), replace(one, layer="")
                yield Reader(output, run, self._tolerance, suspects, _MOST)

    def _run(self, inputs: Any, _: Collection[str]) -> Values:
        """Returns the outputs with the model's present values, and what was recorded of them."""
        outputs = self._recorded_outputs(self._part(inputs, training=False))
        return [(value, closest(array, array_of(value), None)) for _, _, value, array in outputs]

    def _module_of(self, path: str) -> str:
        """Returns the module that the first tensor of a layer belongs to."""
        (variable, *_) = self._variables_of(self._layers[path])
        return re.sub(r"[./][^./]*$", "", self._tensors[self._names[id(variable)]][0][0])

    def _variables_of(self, layer: Any) -> list[Any]:
        """Returns the variables with tensors that a layer holds itself, and none within it."""
        within = {id(v) for one in layers_of(layer) if one is not layer for v in one.weights}
        known = [v for v in layer.weights if self._names.get(id(v)) in self._tensors]
        return [variable for variable in known if id(variable) not in within]

    def _path(self, model: Any, layer: Any) -> str:
        """Returns a layer's name in the plan: of its variables, which tell parts apart."""
        if (held := self._held(layer)) and _is_leaf(layer):
            return held[0].rpartition("/")[0]
        return str(layer.path or layer.name).removeprefix(f"{model.name}/")

    def _held(self, layer: Any) -> list[str]:
        return [self._names[id(v)] for v in layer.weights if id(v) in self._names]

    def _smallest(self, model: Any) -> Any:
        """Returns the smallest layer that holds all variables of the scaffold."""
        around = [
            layer for layer in layers_of(model) if self._tensors.keys() <= {*self._held(layer)}
        ]
        return min(around, key=lambda layer: len(self._held(layer)))

    def _compared_outputs(self, outputs: Any) -> Iterator[Comparison]:
        for recorded, name, value, expected in self._recorded_outputs(outputs):
            names = recorded, name
            yield compare(*names, array_of(value), expected, self._tolerance, once=False)

    def _recorded_outputs(self, outputs: Any) -> Iterator[tuple[str, str, Any, NDArray[Any]]]:
        """Yields the names of an output in reference and model, its value, and its record."""
        values = by_name(outputs)
        names = getattr(self._part, "output_names", ())
        pairs = recorded_names("outputs", self._reference, values, names)
        for name, recorded in pairs.items():
            yield recorded, name, values[name], self._reference.outputs[recorded]

    def _counterparts(self, ranks: Mapping[int, int]) -> Iterator[Layer]:
        """Yields the layers that hold the tensors of a module, with its record."""
        held = {}
        for path, layer in self._layers.items():
            names = self._held(layer)
            # A layer may lack a tensor, such as a bias. One around others is another module then.
            is_one_module = _is_leaf(layer) or self._tensors.keys() >= {*names}
            if is_one_module and id(layer) in ranks and layer is not self._part:
                held[path] = names
        records = self._reference.activations
        compared = set[str]()
        for module, counterpart in counterparts(records, self._tensors, held).items():
            compared |= {*counterpart.layers}
            for path in counterpart.layers:
                layer = self._layers[path]
                # One step of a sequence, or one of several fused layers, cannot be compared.
                rank = self._reference.outlines[module].ndim
                must = counterpart.is_whole and ranks[id(layer)] == rank
                # One around others may add to them, as a residual block does, where its module
                # does not.
                is_one = _is_leaf(layer) or isinstance(layer, _RECURRENT)
                behind, is_part = self._following(module), not (counterpart.is_whole and is_one)
                yield Layer(module, path, layer, records, behind, must, is_part)
        # One kernel at most: adapters belong to a layer, too.
        rest = {
            path: names
            for path, names in held.items()
            if path not in compared
            and sum(len(weight.shape) > 1 for weight in self._layers[path].weights) < 2
        }
        mixed = mixed_modules(records, self._tensors, rest)
        for path, modules in mixed.items():
            layer = self._layers[path]
            bias = getattr(layer, "bias", None)
            name = self._names.get(id(bias), "")
            added = {
                module: self._along_channels(bias, module)
                for module, variables in modules.items()
                if bias is not None and name not in variables
            }
            # A module that computes several layers at once has no record of one.
            is_one = _is_leaf(layer) and all(value is not None for value in added.values())
            for module in modules if is_one else ():
                yield Layer(module, path, layer, records, is_mixed=True, added=added.get(module))

    def _along_channels(self, bias: Any, module: str) -> NDArray[Any] | None:
        """Returns a bias along the axes of a module's record; None for another number of them."""
        value, shape = array_of(bias), self._reference.outlines[module].shape
        axes = {axis for axis in (1, len(shape) - 1) if shape[axis : axis + 1] == value.shape}
        if not axes:
            return None
        axis = min(axes) if self._reference.channels_first else max(axes)
        return value.reshape(-1, *(1,) * (len(shape) - 1 - axis))

    def _following(self, module: str) -> str:
        """Returns the module behind one, if it has no tensors; else an empty name."""
        names = [*self._reference.activations]
        behind = names[names.index(module) + 1 :][:1]
        of_tensors = (
            name
            for several in self._tensors.values()
            for alternatives in several
            for name in alternatives
        )
        has_tensors = any(name.startswith(f"{one}.") for name in of_tensors for one in behind)
        return "" if has_tensors or not behind else behind[0]

    def _settings(self, layer: Comparison) -> list[str]:
        metadata = self._reference.metadata
        config = source_config(self._plan, metadata.get("config", {}))
        module = metadata.get("modules", {}).get(layer.module, {})
        return [*differing_settings(self._layers[layer.layer], module, config)]

    def _flatten_order(self, first: Comparison, inputs: Any) -> Iterator[str]:
        """Yields a line if the layer agrees once its input is flattened with the channels first."""
        layer = self._layers[first.layer]
        with recorded_calls() as calls:
            self._part(inputs, training=False)
        if id(layer) not in calls:
            return
        value = array_of(calls[id(layer)].arguments[0])
        for flatten in self._layers.values():
            if not isinstance(flatten, keras.layers.Flatten | keras.layers.Reshape):
                continue
            call = calls.get(id(flatten))
            maps = array_of(call.arguments[0]) if call else value
            if maps.ndim < 3 or maps.size != value.size or value.ndim != 2:
                continue
            turned = array_of(layer(channels_first_flattened(value, maps.shape)))
            record = self._reference.activations.get(first.module)
            function = activation_of(layer)
            if (
                record is not None
                and compare(
                    first.module, first.layer, turned, record, self._tolerance, activation=function
                ).agrees
            ):
                height, width, channels = maps.shape[-3:]
                yield (
                    f"flatten order: the layer agrees where the channels come first, "
                    f"{channels}x{height}x{width}, and {flatten.name} puts them last"
                )

    def _origins(self, first: Comparison) -> Iterator[str]:
        if self._plan is not None:
            names = {*self._held(self._layers[first.layer])}
            assignments = [a for a in self._plan.assignments if a.variable.name in names]
            module = self._reference.metadata.get("modules", {}).get(first.module, {})
            yield from origins_of_variables(assignments, self._plan, module)


def _tensors(plan: RestorationPlan, scaffold: str) -> dict[str, list[list[str]]]:
    """Returns variable -> the names of each tensor, of a scaffold or of all, in its value.

    The numbered tensors of a Keras file have the names of its layers as aliases.
    """
    aliases: dict[tuple[str, str], list[str]] = {}
    for source, spec in plan.sources.items():
        for alias, tensor in spec.aliases.items() if spec else ():
            aliases.setdefault((source, tensor), []).append(alias)
    tensors: dict[str, list[list[str]]] = {}
    for assignment in plan.assignments:
        piece = assignment.source_tensor
        if piece and piece.names and (piece.source == scaffold or not scaffold):
            tensors[assignment.variable.name] = [
                [name, of_module(name), *aliases.get((piece.source, name), ())]
                for name in piece.names
            ]
    return tensors


_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)


def _is_leaf(layer: Any) -> bool:
    return len(layers_of(layer)) == 1
