import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task, decoupled_diloco, train

def init(key): return {"w": jax.random.normal(key, (32, 1)), "b": jnp.zeros(1)}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)
def batch(at):                                   # at.seed, at.slot, at.position: pure, so that a resume is exact
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

task = Task(init, loss, batch, tokens_per_batch=64, optimizer=optax.adamw(1e-2))
if __name__ == "__main__":
    result = train(decoupled_diloco(interval=24, fragments=2), task, learners=4, tokens=1_000_000)
    print(result.eval_loss, result.summary["goodput"]); result.parameters     # the same pytree as init()
