"""All that a comparison leaves for people: a table, CSV files, a picture and a page."""

from functools import partial
from pathlib import Path

from lightning_fire.experiments import report, stream_report
from lightning_fire.experiments.deliver import deliver, place, title_of
from lightning_fire.experiments.page import write_page
from lightning_fire.experiments.whole_file import whole_file
from lightning_fire.recipe.recipe import Recipe


def publish(histories: report.Histories, reference: str, recipe: Recipe, output: Path) -> None:
    """Write everything, print the table and say where the rest is."""
    title, stream = title_of(recipe), stream_report.is_stream(histories)
    kind = stream_report if stream else report
    deliver(
        output,
        kind.table(histories, reference),
        {
            "results.csv": partial(report.write_csv, histories, reference),
            "summary.csv": partial(report.write_summary, histories, reference),
            "comparison.png": partial(kind.draw, histories, title=title),
        },
        f"{kind.NOTE}\n{report.MINUS}",
    )
    place("means", output / "summary.csv")
    if stream and (said := stream_report.sentence(histories)):
        print(f"\n{said}\n")
    place("TensorBoard", f"tensorboard --logdir {output}")
    try:
        with whole_file(output / "comparison.html") as part:
            write_page(histories, part, title=title, stream=stream)
        place("page", output / "comparison.html")
    except ImportError as error:
        place("page", f"({error})")
