"""The words and numbers of a name, with the synonyms of the field."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TypeAlias

from runner.errors import ConfigError, Problem, nearest

Token: TypeAlias = "str | int"

_TOKEN = re.compile(r"\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# A single letter behind a number counts, as in `block2a`, and so do a to d alone.
_COUNTING = re.compile(r"(?<=\d)[a-z](?![a-zA-Z])|(?<![a-zA-Z])[a-dAB](?![a-zA-Z])")
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "before": 1, "after": 2}

# Phrases that several writers spell in several ways -> one spelling, before names are cut.
_PHRASES = tuple(
    (re.compile(phrase, re.IGNORECASE), spelling)
    for phrase, spelling in (
        (r"token_?type|segment_?(id)?", "segment"),
        (r"(layer|batch|rms|group)_?norm(alization)?", "norm"),
        (r"feed_?forward(_?network)?", "mlp"),
        (r"(encoder|enc_?dec|cross)_?(attention|attn)", "cross_attention"),
        (r"multi_?head_?(dot_product_)?attention|self_?attn|self_?attention", "attention"),
        (r"separable_?conv(2d)?|conv(1|2|3)d(?=[_/.]|$)|convolution", "conv"),
        (r"layer_?scale", "scale"),
        # KerasHub keeps the table of outputs beside the one of inputs.
        (r"\w*embeddings?/reverse", "head"),
        # PEFT wraps a layer, and names its adapters.
        (r"\.base_layer(?=\.)|(?<=lora_[AB])\.default", ""),
        # Llama's own names: w2(silu(w1(x)) * w3(x)).
        (r"(?<![a-z0-9])w1(?![a-z0-9])", "gate"),
        (r"(?<![a-z0-9])w2(?![a-z0-9])", "down"),
        (r"(?<![a-z0-9])w3(?![a-z0-9])", "up"),
    )
)
_SYNONYMS = {
    word: words[0]
    for group in (
        "query q wq",
        "key k wk",
        "value v wv",
        "output out o wo down",
        "intermediate up",
        "attention attn att mha sa",
        "mlp ffn ff ffw",
        "dense linear fc",
        "embedding embeddings embed embd emb wte",
        "position positions positional pos wpe",
        "token tokens word words tok vocab",
        "norm ln bn gn layernorm",
        "block blocks layer layers h resblocks",
        "shortcut downsample",
        "depthwise dw dwconv",
        "project proj projection pwl",
        "head classifier logits predictions prediction classification",
        "cls class",
        "pooler pooled pool",
        "final f last",
    )
    for words in [group.split()]
    for word in words
}
# Words that place a module beside another one: `post_attention_norm` may be the norm behind
# attention, or the one before what follows it.
RELATIVE = frozenset({"pre", "post"})
# The order of parts in a block, as their words tell it.
STAGES = {"input": 0, "pre": 0, "attention": 1, "mlp": 2, "output": 3, "post": 4}


def tokens(name: str) -> tuple[Token, ...]:
    """Cuts a name into its words, in one spelling for all synonyms, and its numbers.

    `layer1.0.downsample.0` is `("block", 1, 0, "shortcut", 0)`.
    """
    for phrase, spelling in _PHRASES:
        name = phrase.sub(spelling, name)
    name = _COUNTING.sub(lambda letter: f"_{ord(letter[0].lower()) - ord('a')}_", name)
    parts = (part.lower() for part in _TOKEN.findall(name))
    return tuple(
        int(part) if part.isdigit() else _ORDINALS.get(part) or _SYNONYMS.get(part, part)
        for part in parts
    )


def hinted(name: str, hints: Mapping[str, str]) -> str:
    """Returns a tensor's name with the words of the hints replaced by the model's.

    A hint `q=query` replaces `q` wherever it stands between characters that part words.
    """
    for word, other in hints.items():
        name = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", other, name)
    return name


def require_used(
    hints: Mapping[str, str], tensors: Collection[str], variables: Collection[str]
) -> None:
    """Raises a ConfigError for the hints whose words are in no tensor's or no variable's name."""
    problems = []
    known = {token for name in variables for token in tokens(name)}
    for theirs, ours in hints.items():
        state = f"the hint {theirs}={ours} changes nothing"
        if not any(hinted(name, {theirs: ours}) != name for name in tensors):
            cause, words = f"no tensor has the word {theirs} in its name", _words(tensors)
            problems.append(Problem(state, cause, "fix or omit it", nearest(theirs, words)))
        elif known.isdisjoint(tokens(ours)):
            cause, words = f"no variable has the word {ours} in its name", _words(variables)
            problems.append(Problem(state, cause, "fix or omit it", nearest(ours, words)))
    if problems:
        raise ConfigError(*problems)


def _words(names: Collection[str]) -> set[str]:
    return {word for name in names for word in re.findall(r"[A-Za-z]\w*", name)}
