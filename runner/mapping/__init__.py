"""Finds which tensors of a checkpoint are which variables of a model, and writes it as rules.

names and shapes -> modules -> assignment -> certain pairs and ambiguous sets -> rules

- `names`: the words and numbers of a name, with the synonyms of the field.
- `layouts`: how a tensor fits a variable by shape, and which layout a whole file has.
- `modules`: variables and tensors in modules, and which modules fit each other.
- `assignment`: the assignment of modules that all evidence together supports most.
- `evidence`: what speaks for a pair, and what for its exchange; `orders`: the order of definition.
- `certainty`: which pairs are certain, because every exchange costs evidence.
- `correspondence`: `correspond`, the pairs and ambiguous sets of two lists of names.

The room computes with names and shapes alone, and no room but the commands knows it.
"""
