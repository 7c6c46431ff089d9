"""Names and shapes of the variables in the checkpoints of Google's and OpenAI's TensorFlow 1."""


def dense(name, rows, columns):
    return {f"{name}/bias": [columns], f"{name}/kernel": [rows, columns]}


def norm(name, width):
    return {f"{name}/beta": [width], f"{name}/gamma": [width]}


def embeddings(root, words, positions, width):
    return {
        f"{root}/embeddings/word_embeddings": [words, width],
        f"{root}/embeddings/position_embeddings": [positions, width],
        f"{root}/embeddings/token_type_embeddings": [2, width],
        **norm(f"{root}/embeddings/LayerNorm", width),
    }


def encoder(root, depth, width, inner):
    names = {}
    for number in range(depth):
        layer = f"{root}/encoder/layer_{number}"
        for part in ("query", "key", "value"):
            names |= dense(f"{layer}/attention/self/{part}", width, width)
        names |= dense(f"{layer}/attention/output/dense", width, width)
        names |= norm(f"{layer}/attention/output/LayerNorm", width)
        names |= dense(f"{layer}/intermediate/dense", width, inner)
        names |= dense(f"{layer}/output/dense", inner, width)
        names |= norm(f"{layer}/output/LayerNorm", width)
    return names


def bert(words, positions, depth, width, inner):
    return {
        **embeddings("bert", words, positions, width),
        **encoder("bert", depth, width, inner),
        **dense("bert/pooler/dense", width, width),
        "cls/predictions/output_bias": [words],
        **dense("cls/predictions/transform/dense", width, width),
        **norm("cls/predictions/transform/LayerNorm", width),
        "cls/seq_relationship/output_bias": [2],
        "cls/seq_relationship/output_weights": [2, width],
    }


def finetuned(names, width):
    """Replaces the heads of pretraining by a classifier, and adds the slots of Adam."""
    kept = {name: shape for name, shape in names.items() if not name.startswith("cls/")}
    kept |= {"output_bias": [3], "output_weights": [3, width]}
    slots = {f"{name}/adam_{slot}": shape for name, shape in kept.items() for slot in "mv"}
    return {**kept, **slots, "global_step": []}


def electra(words, positions, depth, width, inner, embedding):
    small = width // 4
    return {
        **embeddings("electra", words, positions, embedding),
        **dense("electra/embeddings_project", embedding, width),
        **encoder("electra", depth, width, inner),
        **dense("discriminator_predictions/dense", width, width),
        **dense("discriminator_predictions/dense_1", width, 1),
        **dense("generator/embeddings_project", embedding, small),
        **encoder("generator", depth, small, inner // 4),
        **dense("generator_predictions/dense", small, embedding),
        **norm("generator_predictions/LayerNorm", embedding),
        "generator_predictions/output_bias": [words],
        "global_step": [],
    }


def albert(words, positions, width, inner, embedding):
    layer = "bert/encoder/transformer/group_0/inner_group_0"
    names = embeddings("bert", words, positions, embedding)
    names |= dense("bert/encoder/embedding_hidden_mapping_in", embedding, width)
    for part in ("query", "key", "value"):
        names |= dense(f"{layer}/attention_1/self/{part}", width, width)
    return {
        **names,
        **dense(f"{layer}/attention_1/output/dense", width, width),
        **norm(f"{layer}/LayerNorm", width),
        **norm(f"{layer}/LayerNorm_1", width),
        **dense(f"{layer}/ffn_1/intermediate/dense", width, inner),
        **dense(f"{layer}/ffn_1/intermediate/output/dense", inner, width),
        **dense("bert/pooler/dense", width, width),
        **dense("cls/predictions/transform/dense", width, embedding),
        **norm("cls/predictions/transform/LayerNorm", embedding),
        "cls/predictions/output_bias": [words],
        "global_step": [],
    }


def gpt2(words, positions, depth, width):
    names = {"model/wte": [words, width], "model/wpe": [positions, width]}
    for number in range(depth):
        block = f"model/h{number}"
        for name, rows, columns in (
            ("attn/c_attn", width, 3 * width),
            ("attn/c_proj", width, width),
            ("mlp/c_fc", width, 4 * width),
            ("mlp/c_proj", 4 * width, width),
        ):
            names |= {f"{block}/{name}/w": [1, rows, columns], f"{block}/{name}/b": [columns]}
        for name in ("ln_1", "ln_2"):
            names |= {f"{block}/{name}/g": [width], f"{block}/{name}/b": [width]}
    return {**names, "model/ln_f/g": [width], "model/ln_f/b": [width]}
