"""Your table, read week by week. The one here is made up, so that it runs at once: demand for items in stores."""

import torch
from torch import Tensor

CATEGORIES = {"store": 20, "item": 60}  # columns of codes from 0, and how many codes each has
NUMBERS = ["price", "promotion", "holiday"]  # columns of numbers, scaled to about -2 to 2


def read_week(week: int, rows: int, drift: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of a week: codes (rows, categories), numbers (rows, numbers) and targets (rows,)."""
    # Yours, instead of all below (leave `rows` and `drift` as they are); the targets scaled too, to about -2 to 2:
    #   frame = pandas.read_parquet(Path(__file__).with_name("weeks") / f"{week}.parquet")  # or read_csv
    #   codes of text: frame[column].astype("category").cat.codes, made once from the table of all weeks
    #   codes, numbers = frame[list(CATEGORIES)].to_numpy("int64"), frame[NUMBERS].to_numpy("float32")
    #   return torch.tensor(codes), torch.tensor(numbers), torch.tensor(frame["demand"].to_numpy("float32"))
    effects = {name: torch.zeros(size, 6) for name, size in CATEGORIES.items()}
    for number in range(week + 1):
        random = torch.Generator().manual_seed(number)
        changed = drift if number else 1.0
        for name, old in effects.items():
            effects[name] = (1 - changed**2) ** 0.5 * old + changed * torch.randn(old.shape, generator=random)
    codes = torch.stack([torch.randint(size, (rows,), generator=random) for size in CATEGORIES.values()], dim=1)
    numbers = torch.randn(rows, len(NUMBERS), generator=random)
    store, item = effects["store"][codes[:, 0]], effects["item"][codes[:, 1]]
    level = 0.5 * store[:, 0] + 0.5 * item[:, 0] + 0.4 * (store[:, 1:3] * item[:, 1:3]).sum(1)
    demand = level + 0.3 * (item[:, 3:] * numbers).sum(1) + 0.5 * torch.randn(rows, generator=random)
    return codes, numbers, demand
