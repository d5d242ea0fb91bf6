"""The picture of a comparison as a page: names in the legend switch curves on and off, the wheel zooms."""

from html import escape
from pathlib import Path

from lightning_fire.experiments.report import LOWEST_DFI, Band, Histories, accuracy_range, band, colors, label_of


def write_page(histories: Histories, path: Path, title: str, stream: bool = False) -> None:
    """Write what `report.draw`, or of a stream `stream_report.draw`, shows as one HTML file that needs no network."""
    try:
        from plotly.graph_objects import Figure, Scatter
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ImportError("the page needs plotly: pip install 'lightning-fire[html]'") from error
    figure: Figure = make_subplots(rows=2, shared_xaxes=True, row_heights=[0.66, 0.34], vertical_spacing=0.04)
    for (method, by_seed), color in zip(histories.items(), colors(len(histories)), strict=True):
        runs = list(by_seed.values())
        upper = [run.online if stream else run.accuracy_with_events() for run in runs]
        lower = [run.dormant if stream else run.dfi_with_events() for run in runs]
        label = label_of(method, runs, "online_last" if stream else "final")
        for row, curves in ((1, upper), (2, lower)):
            if any(series is None for series in curves):
                continue
            curve = band(runs, curves)
            common = {"legendgroup": method, "mode": "lines", "line_color": color, "x": curve.place}
            names = {"name": escape(label, quote=False), "showlegend": row == 1}
            figure.add_trace(Scatter(**common, **names, y=curve.mean, line_width=2), row=row, col=1)
            figure.add_trace(_shade(Scatter, curve, color, method), row=row, col=1)
    every = [run for runs in histories.values() for run in runs.values()]
    chunks = max(len(run.starts) for run in every) - 1
    for chunk in range(1, chunks):
        figure.add_vline(chunk, line_dash="dash", line_width=1, opacity=0.5)
    if stream:
        figure.update_yaxes(title_text="online accuracy", row=1)
        figure.update_yaxes(title_text="dormant units", row=2)
    else:
        figure.update_yaxes(title_text="test accuracy", range=accuracy_range(every), row=1)
        figure.update_yaxes(title_text="normalised DfI", type="log", autorangeoptions_clipmin=LOWEST_DFI, row=2)
    figure.update_xaxes(title_text="chunks of data (all epochs of a chunk between two dashed lines)", row=2)
    legend = "online accuracy, last tasks" if stream else "final accuracy"
    figure.update_layout(title=escape(title, quote=False), template="plotly_white", legend_title=legend, height=800)
    figure.write_html(path, include_plotlyjs=True)


def _shade(scatter: type, curve: Band, color: str, method: str) -> object:
    """Fill between mean - deviation and mean + deviation."""
    low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
    return scatter(
        x=[*curve.place, *curve.place[::-1]],
        y=[*high, *low[::-1]],
        fill="toself",
        fillcolor=color,
        opacity=0.15,
        line_width=0,
        mode="lines",
        hoverinfo="skip",
        legendgroup=method,
        showlegend=False,
    )
