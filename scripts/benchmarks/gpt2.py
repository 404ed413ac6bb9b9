"""The model that files are read from: GPT-2 as it is published, 160 tensors, 548 MB."""

import math

LARGEST = "wte.weight"  # 154 MB


def shapes(layers, width=768, context=1024, vocabulary=50257):
    """Of GPT-2 as it is published: 160 tensors with 12 layers."""
    yield "wte.weight", (vocabulary, width)
    yield "wpe.weight", (context, width)
    for layer in range(layers):
        for name, shape in (
            ("ln_1.weight", (width,)), ("ln_1.bias", (width,)),
            ("attn.bias", (1, 1, context, context)),
            ("attn.c_attn.weight", (width, 3 * width)), ("attn.c_attn.bias", (3 * width,)),
            ("attn.c_proj.weight", (width, width)), ("attn.c_proj.bias", (width,)),
            ("ln_2.weight", (width,)), ("ln_2.bias", (width,)),
            ("mlp.c_fc.weight", (width, 4 * width)), ("mlp.c_fc.bias", (4 * width,)),
            ("mlp.c_proj.weight", (4 * width, width)), ("mlp.c_proj.bias", (width,)),
        ):
            yield f"h.{layer}.{name}", shape
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)


def gpt2_sizes(megabytes):
    """{name: bytes} of its tensors, each in proportion where they are to be fewer MB."""
    whole = {name: 4 * math.prod(shape) for name, shape in shapes(12)}
    share = min(1.0, megabytes * 1e6 / sum(whole.values()))
    return {name: max(4, int(nbytes * share) // 4 * 4) for name, nbytes in whole.items()}
