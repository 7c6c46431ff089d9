"""Recognises quantized weights, which are codes for numbers, by the tensors beside them.

Every tool that quantizes a network has its layout: the codes in the weight's place or under another
name, and scales, zero points or tables that turn them into numbers. None of them is read here; a
code that is taken for a number is another network.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from runner.checkpoints.reader import TensorSpec

REMEDY = (
    "write plain weights with that tool, e.g. `model.dequantize()` and then `save_pretrained` in "
    "transformers, or save the model before it is quantized, and name that file"
)
_SCALED = "codes with scales"
_BITSANDBYTES8, _BITSANDBYTES4 = "bitsandbytes int8", "bitsandbytes 4-bit"
# Names beside a weight `{name}`, whose module's names begin with `{module}`, -> the layout. What
# takes the weight's place is enough; what stands beside it says something of codes alone.
_IN_PLACE: Mapping[str, str] = {
    "{module}g_idx": "GPTQ",
    "{module}wscales": "SVDQuant",
    "{module}qweight": "GPTQ or AWQ",
    "{module}q_weight": "ExLlamaV2",
    "{module}trellis": "ExLlamaV3",
    "{module}SCB": _BITSANDBYTES8,
    "{name}.absmax": _BITSANDBYTES4,
    "{name}.quant_state.bitsandbytes__nf4": _BITSANDBYTES4,
    "{name}.quant_state.bitsandbytes__fp4": _BITSANDBYTES4,
    "{name}_packed": "compressed-tensors",
    "{name}._data": "quanto",
    "{name}_qdata": "torchao",
    "{module}_{leaf}_qdata": "torchao",
    "{name}_blocks": "MXFP4",
    "{module}W_q": "HQQ",
    "{module}codebooks": "AQLM",
    "{module}Qidxs": "QuIP#",
    "{module}_packed_params._packed_params": "PyTorch's quantization",
    "{module}_packed_params.dtype": "PyTorch's quantization",
}
_BESIDE: Mapping[str, str] = {
    "{name}.SCB": _BITSANDBYTES8,
    "{name}.quant_map": _BITSANDBYTES4,
    "{name}_scale_2": "NVFP4",
    **dict.fromkeys(
        (
            *("{name}_scale", "{name}_scale_inv", "{module}scale_weight", "{module}weight_scale"),
            *("{name}_scales", "{module}scales", "{module}scale", "{name}.scale", "{name}._scale"),
            *("{name}_zero_point", "{module}zero_point", "{module}zeros", "{module}qzeros"),
            *("{module}kernel_scale", "{module}embeddings_scale", "{name}_absmax"),
        ),
        _SCALED,
    ),
}
_SEPARATOR = re.compile(r"[./]")
_NARROW = re.compile(r"u?int[1-8]|float[1-8]_\w+")
_INTEGER = re.compile(r"u?int\d+")
# The last parts of names that a quantization replaces.
_WEIGHTS = ("weight", "kernel", "embeddings")


def is_narrow(dtype: str) -> bool:
    """Returns whether numbers of a type have 8 bits or less, as hardly any but codes have."""
    return _NARROW.fullmatch(dtype) is not None


def is_code(dtype: str) -> bool:
    """Returns whether numbers of a type may be codes: integers, and floats of 8 bits or less."""
    return is_narrow(dtype) or _INTEGER.fullmatch(dtype) is not None


def is_plain_float(dtype: str) -> bool:
    """Returns whether numbers of a type are real or complex floats of more than 8 bits."""
    return not is_narrow(dtype) and ("float" in dtype or "complex" in dtype)


def quantization(name: str, tensors: Mapping[str, TensorSpec]) -> str | None:
    """Returns the layout in which a checkpoint keeps a weight's codes; None if it keeps none.

    The checkpoint may hold codes under `name`, or no tensor of that name.
    """
    stored = tensors.get(name)
    if stored is not None and not is_code(stored.dtype):
        return None
    module, leaf = _split(name)
    patterns = {**_IN_PLACE, **(_BESIDE if stored else {})}
    if stored is None and leaf not in _WEIGHTS:  # The codes of a module are not its bias's.
        patterns = {p: kind for p, kind in patterns.items() if "{name}" in p or "{leaf}" in p}
    for pattern, layout in patterns.items():
        if pattern.format(name=name, module=module, leaf=leaf) in tensors:
            is_float8 = stored is not None and "float" in stored.dtype and layout == _SCALED
            return "float8 with a scale" if is_float8 else layout
    return None


def any_quantization(tensors: Collection[str]) -> str | None:
    """Returns the layout of a checkpoint that holds codes in a weight's place, or None."""
    leaves = {pattern.removeprefix("{module}"): layout for pattern, layout in _IN_PLACE.items()}
    layouts = (leaves.get(_split(name)[1]) for name in tensors)
    return next(filter(None, layouts), None)


def _split(name: str) -> tuple[str, str]:
    """Returns the beginning of a name up to its last `.` or `/`, and the last part."""
    ends = [match.end() for match in _SEPARATOR.finditer(name)]
    return (name[: ends[-1]], name[ends[-1] :]) if ends else ("", name)
