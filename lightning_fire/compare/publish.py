"""All that a comparison leaves for people: a table, CSV files, a picture and a page."""

from pathlib import Path

from lightning_fire.compare import report
from lightning_fire.compare.page import write_page
from lightning_fire.compare.runs import recipe_name


def publish(histories: report.Histories, recipe: Path, output: Path) -> None:
    """Write everything, print the table and say where the rest is.

    Args:
        histories: The runs.
        recipe: The folder of the recipe, which gives the title.
        output: Where to.
    """
    text = report.table(histories)
    title = " / ".join(recipe_name(recipe).parts).replace("_", " ")
    print(f"\n{text}\n")
    (output / "table.txt").write_text(text + "\n")
    report.write_csv(histories, output / "results.csv")
    report.write_summary(histories, output / "summary.csv")
    report.draw(histories, output / "comparison.png", title=title)
    try:
        write_page(histories, output / "comparison.html", title=title)
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
