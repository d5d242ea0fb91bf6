"""Figures of long tables: differences of all methods, with their 95 % intervals, from the files in docs/results.

python docs/results_figures.py   # writes docs/streams_methods.png and docs/protocols_methods.png
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

DOCS = Path(__file__).parent
BEFORE_TRAINING = {  # chosen before training begins, as the network, a penalty or the optimizer
    *(
        "batch_norm",
        "layer_norm",
        "crelu",
        "fire_layer_norm",
        "fire_batch_norm",
        "normalize_and_project",
        "muon",
        "upgd",
    )
}


def draw(name: str, panels: dict[str, pd.DataFrame], label: str) -> None:
    """Write a figure with one panel a table; its methods by their differences, the largest at the top."""
    rows = max(map(len, panels.values()))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels), 0.6 + 0.19 * rows), layout="constrained")
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        lines = lines.sort_values("value")
        colors = ["tab:orange" if method in BEFORE_TRAINING else "tab:blue" for method in lines.method]
        axis.axvline(0, color="gray", linewidth=0.8)
        axis.hlines(range(len(lines)), 100 * lines.low, 100 * lines.high, colors)
        axis.scatter(100 * lines.value, range(len(lines)), 14, colors, zorder=3)
        axis.set_yticks(range(len(lines)), lines.method, fontsize=7)
        axis.tick_params("x", labelsize=7)
        axis.set_ylim(-0.7, len(lines) - 0.3)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(label, fontsize=8)
    figure.savefig(DOCS / name, dpi=150, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    """Write both figures."""
    streams = pd.read_csv(DOCS / "results" / "streams.csv")
    streams = streams[(streams["first seed"] == 0) & (streams.column == "minus full reset (95 %)")].dropna(subset="low")
    panels = {stream: lines for stream, lines in streams.groupby("stream", sort=False)}
    draw("streams_methods.png", panels, "points minus a full reset (95 %)")
    protocols = pd.read_csv(DOCS / "results" / "protocols.csv")
    protocols = protocols[protocols.column == "minus vanilla (95 %)"].dropna(subset="low")
    protocols = protocols.astype({"value": float})
    panels = {protocol: lines for protocol, lines in protocols.groupby("protocol", sort=False)}
    draw("protocols_methods.png", panels, "points minus vanilla, at the end (95 %)")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
