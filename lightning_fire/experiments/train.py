"""Training all runs under one progress bar, and reading back what they logged."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from lightning_fire.experiments.history import read_history
from lightning_fire.experiments.progress import Progress
from lightning_fire.experiments.runs import Run, execute, is_finished, is_outdated

Curves = TypeVar("Curves")


def train(
    runs: Sequence[Run], jobs: int, extra: dict, read: Callable[[Path], Curves] = read_history
) -> tuple[dict[str, dict[int, Curves]], dict[Run, str]]:
    """Train what has not finished before, and return the curves by method and seed, and why runs have failed."""
    curves, failed = train_each(runs, jobs, extra, read)
    histories: dict[str, dict[int, Curves]] = {}
    for run, history in curves.items():
        histories.setdefault(run.method, {})[run.seed] = history
    return histories, failed


def train_each(
    runs: Sequence[Run], jobs: int, extra: dict, read: Callable[[Path], Curves]
) -> tuple[dict[Run, Curves], dict[Run, str]]:
    """Train what has not finished before, and return the curves of the runs, and why runs have failed."""
    if outdated := [run.name for run in runs if is_outdated(run, extra)]:
        print(f"trained before with other settings, training again: {', '.join(outdated)}")
    outcome = _execute_with_bar(runs, min(jobs, len(runs)), extra)
    failed = {run: reason for run, reason in outcome.items() if reason}
    curves: dict[Run, Curves] = {}
    for run in runs:
        if run in failed:
            continue
        try:
            curves[run] = read(run.folder)
        except ValueError as error:
            failed[run] = str(error)
    for run, reason in failed.items():
        log = run.log if run.log.is_file() or run.start is None else run.start.log
        print(f"\n{run.name} FAILED: {reason}  (see {log})")
    return curves, failed


def _execute_with_bar(runs: Sequence[Run], jobs: int, extra: dict) -> dict[Run, str | None]:
    """Show one bar for all runs, in epochs; it names what each process is at."""
    todo = [run for run in runs if not is_finished(run, extra)]
    starts = {run.start for run in todo if run.start is not None}
    seen: tuple[dict[Run, Progress], list[Run]] | None = None
    with tqdm(total=None, unit=" epochs", desc="starting", dynamic_ncols=True) as bar:

        def show(now: dict[Run, Progress], active: list[Run]) -> None:
            nonlocal seen
            if seen == (now, active) or not now:
                return
            seen = now, active
            bar.total, bar.n = _amount(todo, starts, now, active)
            running = [(run, now[run]) for run in active if run in now]
            bar.set_description(", ".join(f"{r.name} chunk {p.chunk}/{p.chunks}" for r, p in running) or "starting")

        return execute(runs, jobs, extra, show)


def _amount(
    todo: Sequence[Run], starts: Collection[Run], now: Mapping[Run, Progress], active: Collection[Run]
) -> tuple[int | None, int]:
    """Return the epochs to do in all, None as long as nobody knows, and those done."""
    shared = [p.epoch for run, p in now.items() if run in starts and run not in active]
    skipped = shared[0] if shared else 0

    def left_out(run: Run) -> int:
        return skipped if run.start in starts else run.epochs_before

    done = sum(p.epoch - left_out(run) for run, p in now.items())
    if min(p.epochs for p in now.values()) < 0 or (starts and not shared):
        return None, done
    own = [p.epochs - left_out(run) for run, p in now.items() if run not in starts]
    own = own or [p.epochs - skipped for p in now.values()]
    return round(sum(own) / len(own)) * len(todo) + skipped * len(starts), done
