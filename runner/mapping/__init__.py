"""Finds which tensors of a checkpoint are which variables of a model, and writes it as rules.

names and shapes -> modules -> assignment -> certain pairs and ambiguous sets -> rules

- `names`: the words and numbers of a name, with the synonyms of the field.
- `layouts`: how a tensor fits a variable by its shape, and which layout a whole file has.
- `modules`: variables and tensors in modules; `fitting`: which modules fit each other, and how.
- `assignment`: the assignment of modules that words and order together support most.
- `evidence`: what speaks for a pair, and what for its exchange; `orders`: the order of definition.
- `certainty`: which pairs are certain, because every exchange costs evidence.
- `correspondence`: `correspond`, the pairs and ambiguous sets of two lists of names.
- `rules`: the shortest rules for the pairs; `generalisation`: numbers become parts.
- `proposal`: `propose`, the door from Python; `text`: its YAML; `command`: `runner map`.

Nothing is guessed: what evidence does not decide is listed and is no rule. Only names and shapes
are read. The room rests on `restoration`, and no other room knows it.
"""
