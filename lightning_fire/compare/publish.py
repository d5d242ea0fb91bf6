"""All that a comparison leaves for people: a table, CSV files, a picture and a page."""

from pathlib import Path

from lightning_fire.compare import report
from lightning_fire.compare.page import write_page
from lightning_fire.compare.runs import recipe_name
from lightning_fire.compare.whole_file import whole_file


def publish(histories: report.Histories, recipe: Path, output: Path) -> None:
    """Write everything, print the table and say where the rest is.

    Args:
        histories: The runs.
        recipe: The folder of the recipe, which gives the title.
        output: Where to.

    Raises:
        SystemExit: If a file cannot be written; names it.
    """
    text = report.table(histories)
    title = " / ".join(recipe_name(recipe).parts).replace("_", " ")
    print(f"\n{text}\n")
    with whole_file(output / "table.txt") as part:
        part.write_text(text + "\n")
    with whole_file(output / "results.csv") as part:
        report.write_csv(histories, part)
    with whole_file(output / "summary.csv") as part:
        report.write_summary(histories, part)
    with whole_file(output / "comparison.png") as part:
        report.draw(histories, part, title=title)
    try:
        with whole_file(output / "comparison.html") as part:
            write_page(histories, part, title=title)
        page = str(output / "comparison.html")
    except ImportError as error:
        page = f"({error})"
    print(
        "accuracies: on the test set, mean ± standard deviation (n - 1) over the seeds;"
        " interval: of the mean, by bootstrap over the seeds; DfI: normalised deviation from isometry"
    )
    print(f"picture:     {output / 'comparison.png'}")
    print(f"page:        {page}")
    print(f"every run:   {output / 'results.csv'}, means and intervals: {output / 'summary.csv'}")
    print(f"TensorBoard: tensorboard --logdir {output}")
