"""Gradients derived by hand, in any library with the names of numpy (``xp``)."""

from typing import Any

import numpy as np


def logistic(xp: Any, w: Any, x: Any, targets: Any) -> list[Any]:
    """Loss and gradient of `models.logistic`."""
    logits = x @ w
    loss = (xp.logaddexp(0.0, logits) - targets * logits).mean()
    slope = (1 / (1 + xp.exp(-logits)) - targets) / len(targets)
    return [loss, x.T @ slope.astype("float32")]


def network(xp: Any, params: Any, x: Any, labels: Any) -> list[Any]:
    """Loss and gradients of `models.network`, flat: loss, then weight and bias of each layer."""
    layers = [x]
    for w, b in params[:-1]:
        layers.append(xp.maximum(layers[-1] @ w + b, 0))
    w, b = params[-1]
    loss, delta = _cross_entropy(xp, layers[-1] @ w + b, labels)
    gradients: list[Any] = []
    for (w, _), layer in zip(params[::-1], layers[::-1], strict=True):
        gradients = [layer.T @ delta, delta.sum(axis=0), *gradients]
        delta = (delta @ w.T) * (layer > 0)
    return [loss, *gradients]


def _cross_entropy(xp: Any, logits: Any, labels: Any) -> tuple[Any, Any]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = xp.exp(shifted)
    total = exponentials.sum(axis=1, keepdims=True)
    hot = (labels[:, None] == np.arange(logits.shape[1])[None, :]).astype("float32")
    loss = -((shifted - xp.log(total)) * hot).sum() / len(labels)
    return loss, (exponentials / total - hot) / np.float32(len(labels))


def softmax(xp: Any, x: Any) -> Any:
    """Along the last axis."""
    exponentials = xp.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def tall(shape: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[int, int]:
    """Chunks as large, as high as the array."""
    return shape[0], chunks[0] * chunks[1] // shape[0]
