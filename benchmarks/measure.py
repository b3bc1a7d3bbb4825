"""Times the contenders of a job in turn, each in a process of its own.

1. Every contender's process starts and imports what it needs.
2. Each runs the job once: the first run, with whatever it compiles. It gives the peak of memory and the bytes moved,
   and its results are compared with those of the others.
3. All run again, in turn, as often as asked; the times are those of these runs.
"""

import json
import re
import select
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from check import Different, difference
from data import Scale, prepare
from jobs import Job
from stores import link_copy

HERE = Path(__file__).parent
FIRST_RUN = 180.0
"""Seconds after which a contender's first run is given up."""


@dataclass
class Figures:
    """What was measured of one contender at one job."""

    error: str | None = None
    first: float | None = None
    """Seconds of the first run."""
    times: list[float] = field(default_factory=list)
    peak: int | None = None
    read: int | None = None
    written: int | None = None
    difference: float | None = None
    """From the first contender's result."""

    @property
    def seconds(self) -> float | None:
        """The median."""
        return statistics.median(self.times) if self.times else None


class Contender:
    """A process that does one job in one way."""

    def __init__(self, name: str, job: Job, data: Path, scratch: Path, budget: int) -> None:
        self.name, self.job, self.data, self.out = name, job, data, scratch / name
        command = [sys.executable, str(HERE / "worker.py"), name, job.name, str(data), str(budget)]
        self.log = scratch / f"{name}.log"
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.log.open("w"), text=True)

    def answer(self, seconds: float) -> dict[str, Any]:
        """Its next answer; an error if there is none in time."""
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if line:
            return json.loads(line)
        if ready:
            return {"error": (self.log.read_text().splitlines() or ["ended"])[-1][:200]}
        self.process.kill()
        self.stop()
        return {"error": f"more than {seconds:.0f} s"}

    def run(self, updates_in_place: bool, seconds: float) -> dict[str, Any]:
        """Do the job once more; the results stay in ``out`` until the next time."""
        self.forget()
        self.out.mkdir()
        if updates_in_place:
            for name in self.job.updates:
                link_copy(self.data / name, self.out / name)
        self.process.stdin.write(f"{self.out}\n")
        self.process.stdin.flush()
        return self.answer(seconds)

    def forget(self) -> None:
        """Delete the results."""
        shutil.rmtree(self.out, ignore_errors=True)

    def stop(self) -> None:
        """End the process, by itself if it can: it removes its temporary files."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.forget()


def functions(contender: str) -> str:
    """The source of a contender; what it can do is read from it without importing its libraries."""
    return (HERE / "contenders" / f"{contender}.py").read_text()


def can(contender: str, job: Job) -> bool:
    """Whether a contender has a function for a job."""
    return re.search(rf"^(def {job.name}\(|[\w, =]*\b{job.name}\b[\w, ]* = )", functions(contender), re.M) is not None


def measure(
    job: Job,
    contenders: Sequence[str],
    scale: Scale,
    folder: Path,
    repeats: int,
    limit: float,
    say: Callable[[str], None] = print,
) -> dict[str, Figures]:
    """The figures of all contenders that can do a job; fewer repeats, yet three, beyond a limit in seconds."""
    data = prepare(folder, scale, job.inputs)
    scratch = folder / "results" / job.name
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    able = [name for name in contenders if can(name, job)]
    running = {name: Contender(name, job, data, scratch, scale.budget) for name in able}
    try:
        return _measure(job, running, repeats, limit, say)
    finally:
        for contender in running.values():
            contender.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _measure(
    job: Job, running: dict[str, Contender], repeats: int, limit: float, say: Callable[[str], None]
) -> dict[str, Figures]:
    in_place = {name: "UPDATES_IN_PLACE = True" in functions(name) for name in running}
    figures = {name: Figures() for name in running}
    for name, contender in running.items():
        figures[name].error = contender.answer(FIRST_RUN).get("error")
    reference = None
    for name, contender in running.items():
        if figures[name].error is None:
            _first_run(contender, figures[name], in_place[name], reference)
            if reference is None and figures[name].error is None:
                reference = contender
            elif reference is not None:
                contender.forget()
        say(f"  {name}: {figures[name].error or f'{figures[name].first:.3f} s at first, equal'}")
    start = time.monotonic()
    for turn in range(repeats):
        if turn >= 3 and time.monotonic() - start > limit:
            break
        for name, contender in running.items():
            if figures[name].error is None:
                answer = contender.run(in_place[name], FIRST_RUN)
                contender.forget()
                figures[name].error = answer.get("error")
                figures[name].times += [answer["seconds"] / job.steps] if "seconds" in answer else []
    return figures


def _first_run(contender: Contender, figures: Figures, in_place: bool, reference: Contender | None) -> None:
    answer = contender.run(in_place, FIRST_RUN)
    figures.error, figures.first, figures.peak = answer.get("error"), answer.get("seconds"), answer.get("peak")
    figures.read, figures.written = answer.get("read"), answer.get("written")
    if figures.error is None and reference is not None:
        figures.error, figures.difference = _compared(contender, reference)


def _compared(contender: Contender, reference: Contender) -> tuple[str | None, float | None]:
    """What is wrong with a result, and by how much it differs."""
    try:
        found = difference(contender.out, reference.out)
    except Different as error:
        return str(error), None
    wrong = None if found <= contender.job.tolerance else f"differs from {reference.name} by {found:.1e}"
    return wrong, found
