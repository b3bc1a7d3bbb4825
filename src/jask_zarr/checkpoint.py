"""Checkpoints: a pytree as one zarr group that anybody can read.

Each array is a member of the group, named after its place in the tree. The structure, and the
leaves that are not arrays, are in an attribute of the group, as JSON.
"""

import json
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import zarr

from jask_zarr import _disk, errors
from jask_zarr._tracing import force
from jask_zarr._tracing.expr import Stored, stored
from jask_zarr._tracing.hitype import DiskArray
from jask_zarr._tracing.sources import Source

ATTRIBUTE = "jask_zarr_checkpoint"
_SCALARS = {kind.__name__: kind for kind in (bool, int, float, complex, str)}


def checkpoint(path: Any, tree: Any) -> None:
    """Write a pytree as one zarr group, in place of what is there.

    On a local path this is one step: a crash leaves the old checkpoint or the new one. Arrays in
    a local store of format 3 on the same file system are not copied: their chunk files are
    linked, and `update_` replaces files, so that the checkpoint keeps what they hold now. All
    others are streamed, computed together.

    Parameters
    ----------
    path : path or zarr store
        Where the group is to be. A store that is not a local one is written chunk by chunk; that
        of an icechunk session becomes a checkpoint with your commit.
    tree : pytree
        Of `DiskArray`, JAX and NumPy arrays, random keys, numbers and text.

    Examples
    --------
    >>> import jask_zarr as jz, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     jz.checkpoint(folder + "/step1", {"w": jz.ones((2, 3)), "step": 1})
    ...     tree = jz.restore(folder + "/step1")
    ...     tree["w"].to_numpy().sum(), tree["step"]
    (np.float32(6.0), 1)
    """
    leaves: list[tuple[str, Any]] = []
    structure = _structure(tree, (), leaves)
    place = _disk.place_of(path)
    _disk.check_creatable(place)
    with force.lock:
        if place.directory is None:
            _write(place.store, place.path, structure, leaves)
        else:
            _check_replaceable(Path(place.directory))
            with _disk.replacing(place.directory) as directory:
                _write(directory, "", structure, leaves)


def _check_replaceable(directory: Path) -> None:
    """Only an empty folder or an earlier checkpoint is replaced."""
    if not directory.is_dir() or not any(directory.iterdir()):
        return
    try:
        attributes = json.loads((directory / "zarr.json").read_text())["attributes"]
    except (OSError, ValueError, KeyError):
        attributes = {}
    if ATTRIBUTE not in attributes:
        raise FileExistsError(
            f"the folder {str(directory)!r} exists and is not a checkpoint: give the checkpoint a folder of its own"
        )


def restore(path: Any, like: Any = None) -> Any:
    """The pytree of a checkpoint; its arrays on disk are opened, not loaded.

    The checkpoint stays as it is, whatever is done with the arrays: where one is updated or
    donated, its new values go to scratch.

    Parameters
    ----------
    path : path or zarr store
        Where the checkpoint is.
    like : pytree, optional
        A tree of the same structure, to have its containers. Without it, dictionaries, lists and
        tuples are restored as such, named tuples as their own type where its module is imported,
        and other containers as dictionaries.

    Raises
    ------
    ArrayNotFoundError, NotAnArrayError
        If there is nothing, or no checkpoint.
    ShapeMismatchError
        If `like` has another number of leaves, or an array of another shape.
    """
    place = _disk.place_of(path, read_only=True)
    if place.directory is not None:
        _disk.recover_directory(place.directory)
    structure, leaves = _read(place)
    if like is None:
        return _tree(structure, leaves)
    expected, treedef = jax.tree.flatten(like)
    _check_like(place, leaves, expected)
    return jax.tree.unflatten(treedef, leaves)


# --- the structure --------------------------------------------------------------------------


def _structure(tree: Any, names: tuple[str, ...], leaves: list[tuple[str, Any]]) -> dict[str, Any]:
    if tree is None:
        return {"none": None}
    if jax.tree_util.all_leaves([tree]):
        leaves.append((_member_name(names, {name for name, _ in leaves}), tree))
        return {"leaf": len(leaves) - 1}
    children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    keys = [jax.tree_util.keystr(key, simple=True) for key, _ in children]
    nodes = [_structure(child, (*names, key), leaves) for key, (_, child) in zip(keys, children, strict=True)]
    return _container(tree, keys, nodes)


def _container(tree: Any, keys: list[str], nodes: list[Any]) -> dict[str, Any]:
    if type(tree) in (list, tuple):
        return {type(tree).__name__: nodes}
    if type(tree) is dict:
        if not all(type(key) in (str, int) for key in tree):
            raise TypeError(f"A checkpoint has dictionaries with keys of str or int, not {sorted(map(repr, tree))}.")
        return {"dict": [[key, node] for key, node in zip(sorted(tree), nodes, strict=True)]}
    name = f"{type(tree).__module__}:{type(tree).__qualname__}"
    kind = "namedtuple" if hasattr(tree, "_fields") else "object"
    return {kind: name, "fields": [[key, node] for key, node in zip(keys, nodes, strict=True)]}


def _member_name(names: tuple[str, ...], taken: set[str]) -> str:
    parts = ["".join(c if c.isalnum() or c in "_-" else "_" for c in name).lstrip("_") or "value" for name in names]
    name = stem = "/".join(parts) or "value"
    number = 1
    while any(name == t or name.startswith(t + "/") or t.startswith(name + "/") for t in taken):
        number += 1
        name = f"{stem}-{number}"
    return name


def _tree(node: dict[str, Any], leaves: list[Any]) -> Any:
    kind, content = next(iter(node.items()))
    if kind == "leaf":
        return leaves[content]
    if kind == "none":
        return None
    if kind in ("list", "tuple"):
        children = [_tree(child, leaves) for child in content]
        return children if kind == "list" else tuple(children)
    pairs = [(key, _tree(child, leaves)) for key, child in (content if kind == "dict" else node["fields"])]
    if kind == "namedtuple":
        return _named_tuple(content, [key for key, _ in pairs])(*(child for _, child in pairs))
    return dict(pairs)


def _named_tuple(name: str, fields: list[str]) -> Any:
    """The type of that name if its module is imported; a file cannot make anything be imported."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, tuple) and list(getattr(found, "_fields", ())) == fields:
        return found
    return namedtuple(path.rpartition(".")[2], fields)


# --- writing --------------------------------------------------------------------------------


def _write(store: Any, path: str, structure: Any, leaves: list[tuple[str, Any]]) -> None:
    entries = [_entry(name, leaf) for name, leaf in leaves]
    attributes = {ATTRIBUTE: {"version": 1, "structure": structure, "leaves": entries}}
    group = zarr.create_group(store, path=path, overwrite=True, attributes=attributes)
    streamed: list[tuple[str, DiskArray]] = []
    for name, leaf in leaves:
        if isinstance(leaf, DiskArray):
            if not _linked(leaf, store, name):
                streamed.append((name, leaf))
        elif not isinstance(leaf, tuple(_SCALARS.values())) or isinstance(leaf, np.generic):
            values = np.asarray(_key_data(leaf) if _is_key(leaf) else leaf)
            _disk.BlockedArray.from_numpy(values, group, path=name)
    if streamed:
        values = [leaf._concrete("checkpoint") for _, leaf in streamed]
        chunks = [leaf.chunks or force.CHOOSE for _, leaf in streamed]
        force.evaluate(values, chunks, lambda plan: _new_arrays(group, streamed, plan.output_chunks))


def _new_arrays(group: zarr.Group, leaves: Any, chunks: Any) -> list[Any]:
    create = _disk.BlockedArray.create
    return [create(group, a.shape, a.dtype, path=name, chunks=c) for (name, a), c in zip(leaves, chunks, strict=True)]


def _linked(array: DiskArray, directory: Any, name: str) -> bool:
    """Link the chunk files of a stored array, if nobody will ever change them in place."""
    leaf = array._concrete("checkpoint").leaf
    if not isinstance(directory, Path) or not isinstance(leaf, Stored):
        return False
    force.check(array._value)
    source = leaf.source.array
    if type(source) is not _disk.BlockedArray or source.path is None or source.zarr_array.metadata.zarr_format != 3:
        return False
    with _disk.held(source.path):
        return _disk.link_files(source.path, directory / name)


def _entry(name: str, leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, DiskArray):
        return {"disk": name}
    if isinstance(leaf, np.generic):
        return {"numpy scalar": name}
    if type(leaf) in _SCALARS.values():
        return {type(leaf).__name__: leaf if isinstance(leaf, bool | int | str) else repr(leaf)}
    if _is_key(leaf):
        return {"key": name, "impl": str(jax.random.key_impl(leaf))}
    if isinstance(leaf, np.ndarray | jax.Array):
        return {"numpy" if isinstance(leaf, np.ndarray) else "jax": name}
    raise TypeError(f"A checkpoint holds arrays, numbers and text, not {type(leaf).__name__!r}, at {name!r}.")


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf)


# --- reading --------------------------------------------------------------------------------


def _read(place: Any) -> tuple[Any, list[Any]]:
    """The structure and the leaves of one checkpoint, also while others take its place."""
    for _ in range(100):
        before = _disk.signature(place)
        try:
            document = _document(place)
            found = document["structure"], [_leaf(place, entry) for entry in document["leaves"]]
        except (errors.JaskZarrError, OSError, KeyError):
            if _disk.signature(place) == before:
                raise
        else:
            if _disk.signature(place) == before:
                return found
    raise errors.StoreBusyError(f"The checkpoint at {place} is replaced again and again while it is read.")


def _document(place: Any) -> dict[str, Any]:
    try:
        group = zarr.open_group(place.store, path=place.path, mode="r", use_consolidated=False)
        document: Any = group.attrs.get(ATTRIBUTE)
    except FileNotFoundError as error:
        raise errors.ArrayNotFoundError(f"There is no checkpoint at {place}.") from error
    except ValueError as error:
        raise errors.NotAnArrayError(f"What is at {place} is no checkpoint ({error}).") from error
    if not isinstance(document, dict) or document.get("version") != 1:
        raise errors.NotAnArrayError(f"The group at {place} is not a checkpoint that this version wrote.")
    return document


def _leaf(place: Any, entry: dict[str, Any]) -> Any:
    kind, content = next(iter(entry.items()))
    if kind in _SCALARS:
        return _SCALARS[kind](content)
    array = _disk.BlockedArray.open(place.store, "/".join(filter(None, (place.path, content))), mode="r")
    if kind == "disk":
        array.pin()
        return DiskArray(stored(Source(array, is_scratch=True)))
    values = array.read_box((0,) * array.ndim, array.shape)
    if kind == "key":
        return jax.random.wrap_key_data(jnp.asarray(values), impl=entry["impl"])
    return {"numpy": lambda: values, "numpy scalar": lambda: values[()], "jax": lambda: jnp.asarray(values)}[kind]()


def _check_like(place: Any, leaves: list[Any], expected: list[Any]) -> None:
    if len(leaves) != len(expected):
        raise errors.ShapeMismatchError(
            f"The checkpoint at {place} has {len(leaves)} leaves, the tree it is to be like has {len(expected)}."
        )
    for found, wanted in zip(leaves, expected, strict=True):
        if np.shape(found) != np.shape(wanted):
            raise errors.ShapeMismatchError(
                f"The checkpoint at {place} has an array of shape {np.shape(found)} where the tree it is to be "
                f"like has one of shape {np.shape(wanted)}."
            )
