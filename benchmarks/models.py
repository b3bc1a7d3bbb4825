"""The mathematics of the jobs that train: as plain JAX, and with the gradient derived by hand for those without one."""

from typing import Any

import jax
import jax.numpy as jnp

STEP = 1e-3


def difference(a: Any, b: Any) -> Any:
    """The sum of squared differences."""
    return jnp.sum(jnp.square(a - b))


def squares_of_rows(table: Any, rows: Any) -> Any:
    """The sum of the squares of the chosen rows."""
    return jnp.sum(jnp.square(jnp.take(table, rows, axis=0, mode="clip")))


def logistic(w: Any, x: Any, targets: Any) -> Any:
    """Mean loss of logistic regression."""
    logits = x @ w
    return jnp.mean(jnp.logaddexp(0.0, logits) - targets * logits)


def network(params: Any, x: Any, labels: Any) -> Any:
    """Mean cross-entropy of a relu network."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    log_p = jax.nn.log_softmax(x @ w + b)
    return -jnp.mean(jnp.sum(log_p * jax.nn.one_hot(labels, log_p.shape[1]), axis=1))


def least_squares(x: Any, w: Any) -> Any:
    """The product with the normal matrix."""
    return x.T @ (x @ w)


def adam(p: Any, m: Any, v: Any, g: Any) -> tuple[Any, Any, Any]:
    """One step, the hundredth."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - STEP * (m / (1 - 0.9**100)) / ((v / (1 - 0.999**100)) ** 0.5 + 1e-8), m, v


def energy(w: Any, x: Any) -> Any:
    """Mean square of a linear map."""
    return jnp.mean(jnp.square(x @ w))


def descent(w: Any, x: Any) -> Any:
    """A step of gradient descent."""
    return w - STEP * jax.grad(energy)(w, x)
