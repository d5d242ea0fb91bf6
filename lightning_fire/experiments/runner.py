"""Training of all runs of a comparison, each once; a run that others continue from is trained before them."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from lightning_fire.experiments.engines import Engine, Job
from lightning_fire.experiments.runs import MARKER, SETTINGS, Run
from lightning_fire.experiments.training import RunProgress, read_progress, remove_replay

NOT_BEGUN = "not begun, as the first runs have failed in the same way"
_KEPT = "kept"
_HOPELESS = 3  # runs
_WHOLE = "(it shared its first chunk; --no-shared-start trains it whole)"


class TimeIsUpError(Exception):
    """The time limit of a comparison is over."""


def train(runs: Sequence[Run], engine: Engine, minutes: float | None = None) -> dict[Run, str]:
    """Train unfinished runs, under one progress bar; return the reasons of failed runs."""
    for run in (*runs, *(run.start for run in runs if run.start is not None)):
        _ = run.code  # that of now, with which all of them are trained
    if outdated := [run.name for run in runs if run.is_outdated()]:
        print(f"trained before with other settings or code, training again: {', '.join(outdated)}")
    until = None if minutes is None else time.monotonic() + 60 * minutes
    often = 0.1 if sys.stderr.isatty() else 30  # seconds: a file or a cluster's log keeps every line
    with tqdm(total=None, unit=" epochs", desc="starting", dynamic_ncols=True, mininterval=often) as bar:
        every = _unfinished(runs)

        def show(now: Mapping[Run, RunProgress], active: Sequence[Run]) -> None:
            if now:
                bar.total, bar.n = amount(every, now, active)
                at = ((run.name, now[run].chunk, now[run].chunks) for run in active if run in now)
                told = (f"{name} chunk {chunk}" + (f"/{chunks}" if chunks else "") for name, chunk, chunks in at)
                bar.set_description(", ".join(told) or "starting", refresh=False)
                bar.update(0)

        try:
            outcome = execute(runs, engine, show, until)
        except (TimeIsUpError, KeyboardInterrupt):
            done = sum(run.is_finished() for run in runs)
            raise SystemExit(
                f"stopped: {done} of {len(runs)} runs have finished; the same command continues them"
            ) from None
    return {run: reason for run, reason in outcome.items() if reason}


def amount(todo: Sequence[Run], now: Mapping[Run, RunProgress], active: Iterable[Run]) -> tuple[int | None, int]:
    """Return the total number of epochs (None while unknown), and the number done.

    A run of unknown length counts as the mean of the others of its kind; the length of a start is known at its end.
    """
    done = sum(progress.epoch - progress.began for progress in now.values())
    ended, total = set(now) - set(active), 0.0
    starts, others = ([run for run in todo if bool(run.saves) == saves] for saves in (True, False))
    of_starts = [now[run].epoch - now[run].began for run in starts if run in ended]
    of_others = [now[run].epochs - now[run].began for run in others if run in now and now[run].epochs >= 0]
    for kind, lengths in ((starts, of_starts), (others, of_others)):
        if kind and not lengths:
            return None, done
        total += len(kind) * sum(lengths) / max(1, len(lengths))
    return round(total), done


def execute(
    runs: Sequence[Run],
    engine: Engine,
    show: Callable[[Mapping[Run, RunProgress], Sequence[Run]], None] = lambda now, active: None,
    until: float | None = None,
) -> dict[Run, str | None]:
    """Train all unfinished runs; return the failure reasons by run.

    A shared start is trained first. Its checkpoint is removed when all its runs have finished, unless it is kept. A run
    that fails, or whose process is killed, is reported and does not stop the others.
    """
    outcome: dict[Run, str | None] = dict.fromkeys(runs)
    waiting = _unfinished(runs)
    active: dict[Run, Job] = {}
    begun: list[Run] = []
    try:
        with _stoppable():
            while waiting or active:
                ready: list[Run] = []
                ahead = {*waiting, *active}
                free = [run for run in waiting if run.start not in ahead]
                for run in free[: engine.limit - len(active)]:
                    waiting.remove(run)
                    try:
                        ready.append(_prepared(run, outcome))
                    except (OSError, ValueError) as error:  # the error of a full disk does not name the file
                        silent = isinstance(error, OSError) and error.errno is not None and error.filename is None
                        outcome[run] = f"{run.folder}: {error}" if silent else str(error)
                active |= zip(ready, engine.begin(ready) if ready else [], strict=True)
                begun += ready
                time.sleep(0.2)
                for run, job in list(active.items()):
                    if job.ended():
                        failure = job.failure()
                        shared = failure and run.start is not None and not run.branch
                        outcome[run] = f"{failure} {_WHOLE}" if shared else failure
                        del active[run]
                if waiting and _all_fail_alike(runs, [run for run in begun if run not in active], outcome):
                    outcome |= dict.fromkeys(waiting, NOT_BEGUN)
                    waiting.clear()
                now = {run: read_progress(run.folder) for run in begun}
                show({run: progress for run, progress in now.items() if progress is not None}, list(active))
                if until is not None and time.monotonic() > until and (waiting or active):
                    raise TimeIsUpError
    finally:
        for job in active.values():
            job.stop()
    _remove_starts(runs, outcome)
    return {run: outcome[run] for run in runs}


def _unfinished(runs: Sequence[Run]) -> list[Run]:
    """Return the runs to train, each after the start that it continues from."""
    todo = [run for run in runs if not run.is_finished()]
    starts = dict.fromkeys(run.start for run in todo if run.start is not None)
    return [*(start for start in starts if not start.is_finished()), *todo]


def _all_fail_alike(runs: Sequence[Run], ended: Sequence[Run], outcome: Mapping[Run, str | None]) -> bool:
    """Return whether all runs of several methods have failed for one reason so far, and none has finished ever."""
    reasons, methods = {outcome[run] for run in ended}, {run.method for run in ended}
    alike = len(ended) >= _HOPELESS and len(methods) > 1 and len(reasons) == 1 and None not in reasons
    return alike and not any(run.is_finished() for run in runs)


def _prepared(run: Run, outcome: Mapping[Run, str | None]) -> Run:
    """Make the folder of a run; return the run, without its start if that start has failed."""
    if run.has_new_code():
        raise ValueError("its code has changed since this command began: give the command again")
    if failed := run.start is not None and outcome.get(run.start):
        if run.branch:
            raise ValueError(f"{run.start.name}: {failed}")
        run = replace(run, start=None)
    if run.folder.exists() and any(run.folder.iterdir()) and not (run.folder / SETTINGS).is_file():
        raise FileExistsError(
            f"{run.folder} holds files that are not of an earlier comparison; choose another --output"
        )
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / SETTINGS).touch()  # marks the folder as one of a run
    run.log.touch()
    return run


def _remove_starts(runs: Sequence[Run], outcome: Mapping[Run, str | None]) -> None:
    """Remove files of shared starts, also of runs that had finished before, except those that a run may still need."""
    for start in {run.start.folder: run.start for run in runs if run.start is not None and not run.branch}.values():
        if start.kept and start.folder.is_dir():
            (start.folder / _KEPT).touch()  # later comparisons also keep it
        sharing = [run for run in outcome if run.start is not None and run.start.folder == start.folder]
        if not any(outcome[run] for run in sharing) and not (start.folder / _KEPT).exists():
            (start.folder / MARKER).unlink(missing_ok=True)  # first, so that no run continues from an incomplete start
            for checkpoint in start.products:
                checkpoint.unlink(missing_ok=True)
            remove_replay(start.folder)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Context manager: turn signals that would end this process into an exception, so that children are stopped too."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    ending = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # Windows has no SIGHUP
    ending = ending if threading.current_thread() is threading.main_thread() else set()
    heeded = [number for number in ending if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    former = {number: signal.signal(number, leave) for number in heeded}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
