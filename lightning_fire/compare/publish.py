"""All that a comparison leaves for people: a table, CSV files, a picture and a page."""

from pathlib import Path

from lightning_fire.compare import report
from lightning_fire.compare.page import write_page


def publish(histories: report.Histories, recipe: Path, output: Path) -> None:
    """Write everything, print the table and say where the rest is.

    Args:
        histories: The runs.
        recipe: The folder of the recipe, which gives the title.
        output: Where to.
    """
    text = report.table(histories)
    print(f"\n{text}\n")
    (output / "table.txt").write_text(text + "\n")
    report.write_csv(histories, output / "results.csv")
    report.write_summary(histories, output / "summary.csv")
    report.draw(histories, output / "comparison.png", title=_title(recipe))
    try:
        write_page(histories, output / "comparison.html", title=_title(recipe))
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


def _title(recipe: Path) -> str:
    parts = recipe.resolve().parts
    return " / ".join(parts[parts.index("recipes") + 1 :] if "recipes" in parts else parts[-1:]).replace("_", " ")
