"""Recorded expressions, the type that JAX sees, and how functions are lifted to it."""
