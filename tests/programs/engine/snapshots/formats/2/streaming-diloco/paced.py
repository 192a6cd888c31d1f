
import time
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jax.random.normal(key, (32, 1)), "b": jnp.zeros(1)}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)
def batch(at):
    time.sleep(0.004)
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

task = Task(init, loss, batch, tokens_per_batch=64, optimizer=optax.adamw(1e-2))
