"""A small model of letters with a held-out set by name, and a multiple-choice set that its final model answers.

    isthmus train --task multiple_choice.py:task --learners 2 --tokens 600000

Sentences such as "3 and 4 make seven." are made up, and a tenth of the sums is never trained on. `sets` is evaluated
during the run, beside the held-out part of the data; `evaluate_final` asks the final model each sum, with four answers,
of which it takes the one that it holds most likely. Summary, report and `isthmus compare` have the accuracies.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Task

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CONTEXT, WIDTH, HIDDEN, ROWS = 16, 16, 128, 256
SUMS = [(a, b) for a in range(10) for b in range(10) if a + b < 10]
UNSEEN = SUMS[::10]
SEEN = [each for each in SUMS if each not in UNSEEN]


def question(a, b):
    return f"{a} and {b} make "


def examples(text, begin=0):
    """The letters before each letter of a text from `begin` on, and these letters."""
    letters = np.frombuffer((" " * CONTEXT + text).encode(), np.uint8)
    places = np.arange(begin, len(text)) + CONTEXT
    return {"before": letters[places[:, None] - np.arange(CONTEXT, 0, -1)], "letter": letters[places]}


def init(key):
    embedding, first, second = jax.random.split(key, 3)
    return {
        "embedding": 0.5 * jax.random.normal(embedding, (128, WIDTH)),
        "hidden": jax.random.normal(first, (CONTEXT * WIDTH, HIDDEN)) * (CONTEXT * WIDTH) ** -0.5,
        "head": jax.random.normal(second, (HIDDEN, 128)) * HIDDEN**-0.5,
    }


def losses(params, batch):
    """The loss of each letter."""
    x = params["embedding"][batch["before"].astype(jnp.int32)].reshape(len(batch["letter"]), -1)
    logits = jax.nn.gelu(x @ params["hidden"]) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["letter"].astype(jnp.int32))


def loss(params, batch):
    return losses(params, batch).mean()


def some_of(sums, rng):
    """A batch of letters of sentences about some of these sums."""
    chosen = (sums[number] for number in rng.integers(0, len(sums), ROWS // 10))
    made = examples("".join(f"{question(a, b)}{WORDS[a + b]}. " for a, b in chosen))
    return {name: values[:ROWS] for name, values in made.items()}


def batch(at):
    return some_of(SEEN, at.rng())


def unseen():
    rng = np.random.default_rng(0)
    return [some_of(UNSEEN, rng) for _ in range(4)]


def answered(params, sums):
    """The share of sums whose right answer, of four, is the most likely one: the mean loss of its letters counts."""
    right = 0
    for a, b in sums:
        choices = [WORDS[(a + b + step) % 10] for step in (0, 1, 3, 7)]
        texts = [examples(f"{question(a, b)}{each}.", begin=len(question(a, b))) for each in choices]
        right += int(np.argmin([float(losses(params, each).mean()) for each in texts]) == 0)
    return right / len(sums)


def evaluate_final(params):
    return {"accuracy": answered(params, SEEN), "accuracy of unseen sums": answered(params, UNSEEN)}


task = Task(
    init,
    loss,
    batch,
    optimizer=optax.adam(3e-3),
    tokens_per_batch=ROWS,
    sets={"unseen": unseen},
    evaluate_final=evaluate_final,
    better={"accuracy": "higher", "accuracy of unseen sums": "higher"},
)
