"""Train a two-layer network on a compressed zarr store that is many times the memory budget.

scikit-learn's handwritten digits (1,797 images of 8×8 pixels) are split into training and test
images. The training images are grown by shifts and noise, block by block, into a zarr store; the
test images stay as they are and are never part of it. Then Adam trains on slices of the store
through `jz.jit`; the parameters and the optimizer's state live in a zarr store too, and are
updated there.

    examples/run --json report.json
"""

import argparse
import gzip
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np
import optax
import zarr
from zarr.codecs import BloscCodec

import jask_zarr as jz

BUDGET = "128MB"
ROWS = 256 * 16_384  # 1.07 GB of float32
BATCH = 16_384
CHUNK = 8_192
EPOCHS = 1
HIDDEN = 128
TEST_IMAGES = 360
SHADES = 16  # a pixel is 0 … 16

optimizer = optax.adam(1e-2)


# The network and its training step: ordinary JAX and optax, nothing of jask_zarr in it.


def initial_parameters(rng):
    def layer(inputs, outputs):
        weights = rng.normal(scale=(2 / inputs) ** 0.5, size=(inputs, outputs))
        return {"w": weights.astype(np.float32), "b": np.zeros(outputs, np.float32)}

    return {"first": layer(64, HIDDEN), "second": layer(HIDDEN, 10)}


def logits(params, x):
    first, second = params["first"], params["second"]
    return jax.nn.relu(x @ first["w"] + first["b"]) @ second["w"] + second["b"]


def loss(params, x, y):
    return optax.softmax_cross_entropy(logits(params, x), jax.nn.one_hot(y, 10)).mean()


def train_step(params, opt_state, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


# The data.


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images of shape (1797, 8, 8) and labels, from the file that `load_digits` reads.

    Importing scikit-learn for it would take more memory than the training does.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("scikit-learn is missing: pip install scikit-learn, or use examples/run")
    with gzip.open(Path(package.origin).parent / "datasets/data/digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int16)
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int32)


def split(images, labels, rng):
    """Training and test images: no original is in both."""
    order = rng.permutation(len(images))
    train, test = order[TEST_IMAGES:], order[:TEST_IMAGES]
    return (images[train], labels[train]), (images[test], labels[test])


def as_rows(images):
    """Pixels from 0 to 1, one image a row."""
    return (images.reshape(len(images), -1) / SHADES).astype(np.float32)


def grown(images, labels, rows, rng) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of images shifted by up to one pixel each way, with noise of up to one shade."""
    framed = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    shifted = np.lib.stride_tricks.sliding_window_view(framed, (8, 8), axis=(1, 2))
    for _ in range(0, rows, CHUNK):
        which = rng.integers(len(images), size=CHUNK)
        down, right = rng.integers(3, size=(2, CHUNK))
        noise = rng.integers(-1, 2, size=(CHUNK, 8, 8), dtype=np.int16)
        pixels = np.clip(shifted[which, down, right] + noise, 0, SHADES)
        yield as_rows(pixels), labels[which]


def write_store(path, images, labels, rows, rng):
    """Stream the grown data into a compressed zarr group; return its arrays x and y."""
    group = zarr.create_group(path)
    codec = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")
    kinds = {"x": ((rows, 64), (CHUNK, 64), "float32"), "y": ((rows,), (CHUNK,), "int32")}
    x, y = (
        group.create_array(name, shape=shape, chunks=chunks, dtype=dtype, compressors=codec)
        for name, (shape, chunks, dtype) in kinds.items()
    )
    blocks = grown(images, labels, rows, rng)
    for start in progress("writing the data", range(0, rows, CHUNK)):
        stop = start + CHUNK
        x[start:stop], y[start:stop] = next(blocks)
    return x, y


# Training.


def on_disk(tree, folder: Path):
    """The same tree with every array in a zarr array of its own, in a group at `folder`."""
    zarr.create_group(folder)

    def stored(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return jz.asarray(leaf).save(folder / name)

    return jax.tree_util.tree_map_with_path(stored, tree)


def train(x, y, folder: Path, rng):
    """The trained parameters, in `folder`, and what the steps read, in bytes a step."""
    params = on_disk(initial_parameters(rng), folder / "params")
    opt_state = on_disk(jz.jit(optimizer.init)(params), folder / "optimizer")
    step = jz.jit(train_step, donate_argnums=(0, 1))
    starts = [start for _ in range(EPOCHS) for start in range(0, len(x), BATCH)]
    with jz.io_cost() as cost:
        for start in progress("training", starts):
            batch = slice(start, start + BATCH)
            params, opt_state, _ = step(params, opt_state, x[batch], y[batch])
    return params, cost.bytes_read // len(starts)


def accuracy(params, images, labels) -> float:
    predicted = jz.jit(logits)(params, as_rows(images)).argmax(axis=-1)
    return float(np.mean(predicted == labels))


# What the user sees.


def progress(title, items):
    """Yield the items, with a bar on standard error."""
    total, began, live = len(items), time.monotonic(), sys.stderr.isatty()
    every = 1 if live else max(total // 10, 1)
    for done, item in enumerate(items, start=1):
        yield item
        if done % every == 0 or done == total:
            bar = "█" * (24 * done // total)
            line = f"{title:>18} |{bar:<24}| {done}/{total} {time.monotonic() - began:5.1f} s"
            print(line, end="\r" if live and done < total else "\n", file=sys.stderr)


def memory(field: str) -> int:
    """Resident bytes of this process: now ("VmRSS") or at most so far ("VmHWM")."""
    status = Path("/proc/self/status")
    if not status.exists():  # outside Linux only the peak is known
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def run(folder: Path, rows: int) -> dict:
    """Write the data, train, and report."""
    imported, began = memory("VmRSS"), time.monotonic()
    jz.set_memory_budget(BUDGET, scratch_dir=folder / "scratch")
    rng = np.random.default_rng(0)
    training, test = split(*digits(), rng)
    stored_x, stored_y = write_store(folder / "data.zarr", *training, rows, rng)
    x, y = jz.open(stored_x), jz.open(stored_y)

    store = folder / "trained.zarr"
    zarr.create_group(store)
    params, bytes_read_per_step = train(x, y, store, rng)
    final_loss = float(jz.jit(loss)(params, x, y))  # over the whole store
    report = {
        "accuracy": accuracy(params, *test),
        "loss": final_loss,
        "raw_bytes": x.nbytes,
        "stored_bytes": stored_x.nbytes_stored(),
        "budget_bytes": jz.memory_budget(),
        "peak_bytes": memory("VmHWM") - imported,
        "bytes_read_per_step": bytes_read_per_step,
        "seconds": round(time.monotonic() - began, 2),
        "store": str(store),
    }
    zarr.open_group(store, mode="r+").attrs.update(report)
    return report


def show(report: dict) -> None:
    megabytes = {
        key.removesuffix("_bytes").replace("_", " "): report[key] / 1e6
        for key in ("raw_bytes", "stored_bytes", "budget_bytes", "peak_bytes")
    }
    print(f"accuracy on {TEST_IMAGES} held-out original images: {report['accuracy']:.1%}")
    print(f"loss over the whole training store: {report['loss']:.4f}")
    print("megabytes: " + ", ".join(f"{name} {size:.0f}" for name, size in megabytes.items()))
    print(f"bytes read per step: {report['bytes_read_per_step']:,}")
    print(f"seconds: {report['seconds']}")
    print(f"trained store: {report['store']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a new folder for the stores")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of grown training data")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    args = parser.parse_args()

    folder = args.out or Path(tempfile.mkdtemp(prefix="run-", dir=Path(__file__).parent))
    report = run(folder.absolute(), args.rows)
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
