"""Finds which tensors of a checkpoint are which variables of a model, and writes it as rules.

names and shapes -> modules -> assignment -> pairs and ambiguous sets   (names propose)
pairs, a reference -> candidates -> calls of layers -> decisions        (values decide)
pairs or decisions -> rules

Names:

- `weights`: which tensors of a checkpoint may be weights, and what the others are.
- `numbered`: names that files of Keras number, in words; `counted`: names that Keras counts.
- `names`: the words and numbers of a name, with the synonyms of the field.
- `layouts`: how a tensor fits a variable by its shape, and which layout a whole file has.
- `modules`: variables and tensors in modules; `module_fitting`: which modules fit, and how.
- `pairing`: the pairing of modules that words and order together support most.
- `evidence`: what words and places say of pairs of modules; `orders`: what numbers and the order of
  definition say of exchanges.
- `leftovers`: what variables without a tensor could be of the tensors that are left.
- `certainty`: which pairs names propose, because every exchange costs evidence.
- `correspondence`: `correspond`, the pairs and ambiguous sets of two lists of names.

Values:

- `source`: a checkpoint's tensors as values, and what its modules computed.
- `cuts`: parts of a fused tensor; `candidates`: these, layouts, sums and constants that fit the
  variables of one call, by shapes; `named_candidates`: what names propose of them.
- `dataflow`: the calls of a model, and which variables each depends on.
- `decision`: what one call takes, and why; `decisions`: of all calls so far; `trials`: calls
  layers with candidates; `ways`: other ways for layers side by side.
- `branches`: ways for branches that are alike; `layer_calls`: calls the model up to a layer;
  `measures`: how near a layer comes to its record after changes before it, and the search for the
  nearest; `walk`: one call of the model, in which all of them work.
- `values`: `decide`, a correspondence that a reference decides.

Both:

- `written_rules`: the shortest rules for the pairs; `generalisation`: numbers become parts.
- `proposal`: `propose`, the door from Python; `text`: its YAML; `named_model`: the model that
  `runner map` is given.

Without a reference, only names and shapes are read, and what names say is a proposal. The room
rests on `restoration` and `proof`, and no other room knows it.
"""
