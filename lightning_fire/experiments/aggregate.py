"""`lightning-fire aggregate`: several comparisons, each of them a task, in one table and picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from lightning_fire.checkpoints.printable import printable
from lightning_fire.experiments.aggregate_report import Estimate, publish, statistics
from lightning_fire.experiments.report import reference_of
from lightning_fire.experiments.task_scores import MEASURES, curves_of, read_task, scores_of


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="lightning-fire aggregate",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Sum up what compare has left for several tasks, as rliable does: the interquartile mean over all\n"
        "runs of all tasks, how probable it is that a run is better than one of another method, and 95 % intervals of\n"
        "both by bootstrap, stratified by task. Trains nothing.",
        epilog="human-normalised scores of the paper's games (random play and humans of Wang et al., ICML 2016):\n"
        "  lightning-fire aggregate runs/asterix=210:8503.3 runs/beam_rider=363.9:16926.5 runs/demon_attack=152.1:1971",
    )
    parser.add_argument(
        "tasks",
        nargs="+",
        metavar="FOLDER[=LOW:HIGH]",
        help="a folder with results.csv of compare; its scores become (score - LOW) / (HIGH - LOW), so that those of"
        " different tasks may be averaged",
    )
    parser.add_argument(
        "--measure",
        choices=MEASURES,
        default="final",
        help="column of results.csv, greater is better (default: final); of returns: before the event, final, mean"
        " since the event; of accuracies: after_event, final, average at the ends of the chunks",
    )
    parser.add_argument("--methods", nargs="+", help="in this order (default: all that every task has)")
    parser.add_argument(
        "--reference", help="method that the others are compared with (default: vanilla, or else the first)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/aggregate"), help="folder for the results (default: runs/aggregate)"
    )
    return parser


def main(args: Sequence[str] | None = None) -> dict[str, dict[str, Estimate]]:
    """Run the command, and return for each method what `aggregate_report.statistics` does."""
    options = parser().parse_args(args)
    try:
        tasks = [read_task(word, options.measure) for word in options.tasks]
        scores = scores_of(tasks, options.methods)
        reference = reference_of(options.reference, list(scores))
        curves = curves_of(tasks, scores)
    except (OSError, ValueError) as error:
        parser().error(printable(str(error)))
    summary = statistics(scores, reference)
    publish(tasks, scores, curves, summary, reference, MEASURES[options.measure], options.output)
    return summary
