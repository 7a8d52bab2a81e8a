"""Programs that planners are asked to plan: networks that the onnx package ships, a training step
in JAX, a `.tflite` file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parents[2] / "fixtures"
SHIPPED = ("squeezenet", "shufflenet", "inception_v2", "resnet50", "densenet121")
GPT = """
import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, TOKENS, WORDS, BATCH = 6, 256, 8, 256, 8192, 4


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def block(x, w):
    q, k, v = jnp.split(norm(x) @ w["qkv"], 3, -1)
    q, k, v = (t.reshape(BATCH, TOKENS, HEADS, -1).transpose(0, 2, 1, 3) for t in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((TOKENS, TOKENS), bool)), scores, -1e9)
    mixed = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDTH)
    x = x + mixed @ w["out"]
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def loss(w, tokens):
    x = w["embed"][tokens]
    for each in w["blocks"]:
        x = block(x, each)
    scores = jax.nn.log_softmax(norm(x) @ w["embed"].T)
    return -jnp.take_along_axis(scores[:, :-1], tokens[:, 1:, None], -1).mean()


@jax.jit
def step(w, tokens):
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, jax.grad(loss)(w, tokens))


shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH)}
shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
blocks = [{name: jnp.full(shape, 0.01) for name, shape in shapes.items()} for _ in range(LAYERS)]
weights = {"embed": jnp.ones((WORDS, WIDTH)), "blocks": blocks}
step.lower(weights, jnp.ones((BATCH, TOKENS), int)).compile()
"""


def shipped(name: str, pixels: int | None, path: Path) -> Path:
    """A network of the onnx package, with random weights instead of constants that a compiler folds
    away; for images of another size."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.data import light

    model = onnx.load(str(Path(next(iter(light.__path__))) / f"light_{name}.onnx"))
    rng = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            shape = shapes[node.input[0]].tolist()
            values = rng.uniform(0.01, 1, shape).astype(np.float32) / max(
                1, int(np.prod(shape[1:]))
            )
            model.graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    weights = {tensor.name for tensor in model.graph.initializer}
    images = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(images)
    model.ir_version = 8
    for value in model.graph.input if pixels else ():
        dims = value.type.tensor_type.shape.dim
        dims[2].dim_value = dims[3].dim_value = pixels or 0
    if pixels:
        del model.graph.value_info[:]
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
    path.write_bytes(model.SerializeToString())
    return path


def programs(folder: Path) -> dict[str, Path]:
    """Every program by name, written into a folder where it is made."""
    found = {"wake-words (.tflite)": FIXTURES / "wake-words.tflite"}
    step = folder / "gpt-step.py"
    step.write_text(GPT)
    found["GPT training step, 6 layers (JAX)"] = step
    for name in SHIPPED:
        found[f"{name}, 224 px"] = shipped(name, None, folder / f"{name}.onnx")
    return found | {
        "densenet121, 64 px": shipped("densenet121", 64, folder / "densenet121-64.onnx")
    }
