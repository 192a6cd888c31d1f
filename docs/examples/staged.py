import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task, scan_layers


def init(key):
    return {"first": jnp.eye(32), "layers": 0.1 * jax.random.normal(key, (8, 32, 32)), "last": jnp.ones((32, 1))}


def layer(x, weights):
    return x + jnp.tanh(x @ weights), None


def loss(params, batch):
    x, _ = scan_layers(layer, batch["x"] @ params["first"], params["layers"], microbatches=8)
    return jnp.mean((x @ params["last"] - batch["y"]) ** 2)


def batch(at):
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


task = Task(
    init,
    loss,
    batch,
    tokens_per_batch=64,
    optimizer=optax.adamw(1e-3),
    mesh={"data": -1, "stage": 4},
    stacked=("layers",),
)
