"""The wider type: in which floats and integers are summed, within a tile and over tiles."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def wider(dtype: Any) -> np.dtype:
    """The widest type of the same kind.

    >>> wider(jnp.bfloat16), wider(np.uint8)
    (dtype('float64'), dtype('uint64'))
    """
    return np.dtype(wider_inexact(dtype) or ("uint64" if jnp.issubdtype(dtype, jnp.unsignedinteger) else "int64"))


def wider_inexact(dtype: Any) -> str | None:
    """The same for floats and complex numbers; None for integers, whose sums wrap where JAX lets them wrap."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return "complex128"
    return "float64" if jnp.issubdtype(dtype, jnp.floating) else None
