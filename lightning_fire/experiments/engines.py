"""Engines that run the trainings of a comparison: on this machine, by Slurm, or on a Ray cluster."""

import importlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Protocol

from lightning_fire.experiments.runs import PARENT, Run

_PRELOADED = ["lightning_fire.recipe.cli", "lightning_fire.experiments.training"]


@dataclass(frozen=True)
class Resources:
    """Resources of one training.

    Attributes:
        cpus: CPU cores; None: an equal part of those of this machine, or 1 on a cluster.
        gpus: GPUs; None: 1 on this machine, if it has any, or 0 on a cluster.
        minutes: Time after which Slurm ends it; it then continues from its last checkpoint.
    """

    cpus: int | None = None
    gpus: int | None = None
    minutes: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("cpus", 1), ("gpus", 0), ("minutes", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"`{name}` of a run must be a whole number of at least {least}, got {value!r}")


class Job(Protocol):
    """A started training."""

    def ended(self) -> bool:
        """Whether it has ended."""

    def failure(self) -> str | None:
        """Reason of a failure; None if it has not failed."""

    def stop(self) -> object:
        """Stop the job."""


class Engine(Protocol):
    """Base class of engines. `limit`: maximum number of simultaneous trainings."""

    limit: int

    def begin(self, runs: Sequence[Run]) -> Sequence[Job]:
        """Start trainings."""

    def close(self) -> None:
        """Release the engine's resources."""


def engine_of(name: str, output: Path, jobs: int | None, resources: Resources, options: Mapping[str, Any]) -> Engine:
    """Return the engine with a name, `local`, `slurm` or `ray`; `options` are passed to Slurm or Ray."""
    if name == "local":
        if options:
            raise ValueError(f"--engine local takes no options, got {', '.join(options)}")
        return Local(jobs, resources)
    return (Slurm if name == "slurm" else Ray)(output, jobs, resources, options)


class Local:
    """Processes of this machine.

    On Linux without a GPU each is a fork of Python's fork server, which has imported everything once: imports take 5 to
    25 s of CPU time, as much as a small training, a fork 0.01 s. Elsewhere forks are not safe, and each new interpreter
    imports everything again.
    """

    def __init__(self, jobs: int | None, resources: Resources):
        import torch

        if sys.platform == "linux":  # it imports at the same time as this process
            multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
            forkserver.ensure_running()
        there = ",".join(map(str, range(torch.cuda.device_count())))
        self.gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", there).split(",") if name]
        self.gpus_each = min(1, len(self.gpus)) if resources.gpus is None else resources.gpus
        if self.gpus_each > len(self.gpus):
            raise ValueError(f"a run needs {self.gpus_each} GPUs, this machine has {len(self.gpus)}")
        cores = os.cpu_count() or 1
        room = len(self.gpus) // self.gpus_each if self.gpus_each else cores // (resources.cpus or 1)
        self.limit = jobs or max(1, room)
        self.threads = resources.cpus or max(1, cores // self.limit)
        self.slots = set(range(self.limit))

    def begin(self, runs: Sequence[Run]) -> Sequence[Job]:
        return [_Process(run, self, self.slots.pop()) for run in runs]

    def share(self, slot: int) -> dict[str, str]:
        """Environment variables that assign a process its GPUs and, unless the user has set them, its cores."""
        share = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(self.threads))}
        if len(self.gpus) > self.gpus_each:  # also for a single run: on all cores it would be a different training
            numbers = range(slot * self.gpus_each, (slot + 1) * self.gpus_each)
            share["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[number % len(self.gpus)] for number in numbers)
        return share

    def close(self) -> None:
        """Do nothing: the fork server ends with this process."""


class _Process:
    """A training in a process of this machine."""

    def __init__(self, run: Run, engine: Local, slot: int):
        import torch

        self.log, self.engine, self.slot = run.log, engine, slot
        forks = sys.platform == "linux" and not torch.cuda.is_available()
        context: Any = multiprocessing.get_context("forkserver" if forks else "spawn")
        self.process = context.Process(target=_train, args=(run, Path.cwd(), {**os.environ, **engine.share(slot)}))
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")  # otherwise the calling script would run again there
        try:
            self.process.start()
        finally:
            sys.modules["__main__"] = main

    def ended(self) -> bool:
        if ended := self.process.exitcode is not None:
            self.engine.slots.add(self.slot)
        return ended

    def failure(self) -> str | None:
        code = self.process.exitcode
        if code < 0:
            return f"killed by {signal.Signals(-code).name}; out of memory? Try fewer --jobs"
        return _failure(code or None, self.log)

    def stop(self) -> None:
        """Stop the process, after 10 s by force."""
        self.process.terminate()
        self.process.join(10)
        self.process.kill()
        self.process.join()


def _train(run: Run, where: Path, environment: Mapping[str, str]) -> None:
    """Run the program in this process as in a new interpreter."""
    os.chdir(where)
    sys.path.insert(0, str(where))
    output = os.open(run.log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ.clear()
    os.environ.update({**environment, PARENT: str(os.getppid())})
    import torch

    from lightning_fire._private import call_exit_functions, forget_exit_functions
    from lightning_fire.experiments.training import perform

    if forked := multiprocessing.get_start_method() == "forkserver":
        forget_exit_functions()
    multiprocessing.set_start_method(None, force=True)  # otherwise loaders would start their workers as this process
    if environment.get("OMP_NUM_THREADS", "").isdigit():
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    program = importlib.import_module("lightning_fire.__main__")
    sys.modules["__main__"].__spec__ = program.__spec__  # strategies start further processes with the same command

    def fit(words: Sequence[str]) -> int | str | None:
        sys.argv = [str(program.__file__), "fit", *words]
        try:
            program.console()
        except SystemExit as leaving:  # with 0 if it was stopped from outside
            return leaving.code
        return None

    try:
        result = perform(run, fit)
    finally:
        if forked:  # otherwise Python calls them: loggers end their runs there
            call_exit_functions()
    raise SystemExit(result)


def train_elsewhere(run: Run, where: Path, cpus: int) -> int | str | None:
    """Train in a process started by an engine, maybe on another machine; see `perform`."""
    from lightning_fire.experiments.training import perform

    os.chdir(where)
    drop = ("SLURM_", "SUBMITIT_")  # otherwise Lightning assumes one of several tasks of a job
    environment = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    environment |= {PARENT: str(os.getpid()), "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", str(cpus))}

    def fit(words: Sequence[str]) -> int:
        command = [sys.executable, "-m", "lightning_fire", "fit", *words]
        with open(run.log, "a") as log:
            done = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
        return done.returncode

    return perform(run, fit)


class _Resubmitted:
    """`train_elsewhere`; if Slurm preempts it, submitit resubmits the same."""

    def __call__(self, run: Run, where: Path, cpus: int) -> int | str | None:
        return train_elsewhere(run, where, cpus)

    def checkpoint(self, *arguments: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


class Slurm:
    """Slurm jobs by submitit: an array of all trainings that are ready. All machines must see the same files."""

    def __init__(self, output: Path, jobs: int | None, resources: Resources, options: Mapping[str, Any]):
        try:
            import submitit
        except ImportError as error:
            raise ImportError("--engine slurm needs submitit: pip install 'lightning-fire[slurm]'") from error
        options = dict(options)
        self.limit, self.cpus = jobs or 1000, resources.cpus or 1
        cluster = options.pop("cluster", "slurm")  # by default submitit would train here if there is no Slurm
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise ValueError(
                "--engine slurm: no `sbatch` on this machine: run it where jobs are submitted, or try it here with"
                " --engine-set cluster=local"
            )
        output.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=output))  # others may use the same output
        self.executor = submitit.AutoExecutor(folder=self.folder, cluster=cluster, slurm_max_num_timeout=1000)
        self.executor.update_parameters(
            name="lightning-fire",
            cpus_per_task=self.cpus,
            gpus_per_node=resources.gpus or 0,
            timeout_min=resources.minutes or 24 * 60,
            slurm_array_parallelism=self.limit,
            **{f"slurm_{name}": value for name, value in options.items()},
        )

    def begin(self, runs: Sequence[Run]) -> Sequence[Job]:
        jobs = self.executor.map_array(_Resubmitted(), runs, *([one] * len(runs) for one in (Path.cwd(), self.cpus)))
        started = zip(jobs, runs, strict=True)
        return [_ClusterJob(run.log, job.done, job.result, partial(job.cancel, check=False)) for job, run in started]

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Ray:
    """Ray tasks, on this machine or a cluster. All machines must see the same files."""

    def __init__(self, output: Path, jobs: int | None, resources: Resources, options: Mapping[str, Any]):
        try:
            import ray
        except ImportError as error:
            raise ImportError("--engine ray needs Ray: pip install 'lightning-fire[ray]'") from error
        self.ray: Any = ray
        self.limit, self.cpus = jobs or 1000, resources.cpus or 1
        if not self.ray.is_initialized():
            self.ray.init(include_dashboard=False, log_to_driver=False, **options)
        given = {"num_cpus": self.cpus, "num_gpus": resources.gpus or 0}
        # a training whose machine is lost continues on another one, from its last checkpoint
        self.train = self.ray.remote(**given, max_retries=10)(train_elsewhere)

    def begin(self, runs: Sequence[Run]) -> Sequence[Job]:
        return [self._job(run, self.train.remote(run, Path.cwd(), self.cpus)) for run in runs]

    def _job(self, run: Run, result: Any) -> Job:
        get, cancel = partial(self.ray.get, result), partial(self.ray.cancel, result, force=True)
        return _ClusterJob(run.log, lambda: bool(self.ray.wait([result], timeout=0)[0]), get, cancel)

    def close(self) -> None:
        self.ray.shutdown()


class _ClusterJob:
    """A training on a cluster, through functions of its library; `result` raises an error if the training was lost."""

    def __init__(self, log: Path, ended: Callable[[], bool], result: Callable[[], Any], stop: Callable[[], object]):
        self.log, self.ended, self.result, self.stop = log, ended, result, stop

    def failure(self) -> str | None:
        try:
            result = self.result()
        except Exception as error:  # any error of the library
            return " ".join(str(error).strip().splitlines()[-1:]) or type(error).__name__
        return _failure(result, self.log)


def _failure(result: int | str | None, log: Path) -> str | None:
    """Reason of a failure, from the result of `perform` and the log; None if it has not failed."""
    if result is None or isinstance(result, str):
        return result
    return log_tail(log.read_text(errors="replace")) or f"exit code {result}"


def log_tail(log: str) -> str:
    """Return the last message of a program: from its last "error:" on, otherwise its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if re.match(r"(\S+: )?error: ", line)]
    return " ".join(lines[errors[-1] :][:8]) if errors else "".join(lines[-1:])
