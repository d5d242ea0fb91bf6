"""What an event passes through: `python tests/support/walk.py` prints files, functions and calls of the package.

The file has its own network and data, as a stranger's project has. Then follow counts over the whole package.
"""

import ast
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lightning_fire as lf

PACKAGE = Path(lf.__file__).parent
SAMPLES = [{"x": x, "labels": n % 3} for n, x in enumerate(torch.randn(24, 6, generator=torch.Generator()))]


class Walk:
    """Counts the calls of each function of the package while `seen` is entered."""

    def __init__(self) -> None:
        self.calls: Counter[object] = Counter()

    def start(self) -> None:
        def called(frame: object, kind: str, _: object) -> None:
            if kind == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
                self.calls[frame.f_code] += 1

        sys.setprofile(called)

    def stop(self) -> None:
        sys.setprofile(None)

    def row(self) -> tuple[int, int, int, int]:
        """Files, functions, calls, and all lines of the files."""
        files = {code.co_filename for code in self.calls}
        assert files, "there was no event"
        lines = sum(len(Path(file).read_text().splitlines()) for file in files)
        return len(files), len(self.calls), self.calls.total(), lines


class Net(nn.Module):
    """A three-layer network that returns its loss if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        output = self.layers(x)
        return {"logits": output} if labels is None else {"loss": cross_entropy(output, labels), "logits": output}


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.net(*batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Data(pl.LightningDataModule):
    """New data in every epoch."""

    @property
    def chunk(self) -> int:
        return self.trainer.current_epoch

    def train_dataloader(self) -> DataLoader:
        generator = torch.Generator().manual_seed(self.chunk)
        data = TensorDataset(torch.randn(24, 6, generator=generator), torch.randint(3, (24,), generator=generator))
        return DataLoader(data, batch_size=8)


def in_lightning(callback: pl.Callback) -> Walk:
    """Walk through the first batch start of the second epoch."""
    walk = Walk()

    class Starts(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, module: object, batch: object, batch_idx: int) -> None:
            if trainer.current_epoch == 1 and batch_idx == 0:
                walk.start()

    class Stops(pl.Callback):
        def on_train_batch_start(self, *_: object) -> None:
            walk.stop()

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    bounds = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1, "accelerator": "cpu"}
    trainer = pl.Trainer(callbacks=[Starts(), callback, Stops()], enable_model_summary=False, **quiet, **bounds)
    trainer.fit(Module(), datamodule=Data())
    return walk


def in_a_plain_loop() -> Walk:
    walk, model = Walk(), Net()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(8, 6), torch.zeros(8, dtype=torch.int64))["loss"].backward()
    optimizer.step()
    walk.start()
    lf.fire_(model, optimizers=optimizer)
    walk.stop()
    return walk


def in_hugging_face() -> Walk:
    import transformers

    from lightning_fire.integrations.huggingface import PlasticityCallback

    walk = Walk()

    class Starts(transformers.TrainerCallback):
        def on_step_begin(self, args: object, state: object, control: object, **_: object) -> None:
            if state.global_step == 1:
                walk.start()

    class Stops(transformers.TrainerCallback):
        def on_step_begin(self, *_: object, **__: object) -> None:
            walk.stop()

    with TemporaryDirectory() as folder:
        how = {"max_steps": 3, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
        callbacks = [Starts(), PlasticityCallback(lf.FIRE(), lf.EveryNSteps(1)), Stops()]
        arguments = transformers.TrainingArguments(folder, **how)
        trainer = transformers.Trainer(Net(), arguments, train_dataset=SAMPLES, callbacks=callbacks)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return walk


def in_stable_baselines3() -> Walk:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    from lightning_fire.integrations.stable_baselines3 import PlasticityCallback

    walk = Walk()

    class Around(BaseCallback):
        def __init__(self, act: Callable[[], None]):
            super().__init__()
            self.act = act

        def _on_rollout_start(self) -> None:
            if self.num_timesteps == 32:
                self.act()

        def _on_step(self) -> bool:
            return True

    small = {"n_steps": 32, "batch_size": 32, "n_epochs": 1, "policy_kwargs": {"net_arch": [8, 8]}, "device": "cpu"}
    event = PlasticityCallback(lf.FIRE(), lf.EveryNSteps(32))
    PPO("MlpPolicy", "CartPole-v1", **small).learn(64, [Around(walk.start), event, Around(walk.stop)])
    return walk


@contextmanager
def quiet():
    """Without the messages of the trainings."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


EVENTS: dict[str, Callable[[], Walk]] = {
    "FIRECallback()": lambda: in_lightning(lf.FIRECallback()),
    "FIRECallback, no lambda_max": lambda: in_lightning(lf.FIRECallback(log=lf.Log(curvature=False))),
    "fire_(model, optimizers=o)": in_a_plain_loop,
    "PlasticityCallback(ReDo)": lambda: in_lightning(lf.PlasticityCallback(lf.ReDo(threshold=0.9), lf.EveryNEpochs(1))),
    "FIRE in Hugging Face": in_hugging_face,
    "FIRE in Stable-Baselines3": in_stable_baselines3,
}


def print_events() -> None:
    """Print what each event passes through."""
    print(f"{'event':30}{'files':>8}{'functions':>11}{'calls':>9}{'lines of the files':>20}")
    for name, walked in EVENTS.items():
        try:
            with quiet():
                torch.manual_seed(0)
                files, functions, calls, lines = walked().row()
        except ImportError as error:
            print(f"{name:30}  skipped: {error}")
        else:
            print(f"{name:30}{files:8,}{functions:11,}{calls:9,}{lines:20,}")


def counted(tree: ast.AST) -> Counter[str]:
    """Count the calls and handlers that inspect what they are given."""
    calls = [n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    handlers = [n.type.id for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and isinstance(n.type, ast.Name)]
    looks = sum(name in ("getattr", "hasattr", "vars") for name in calls)
    return Counter({"isinstance": calls.count("isinstance"), "looks": looks, "broad": handlers.count("Exception")})


def print_rooms() -> None:
    """Print lines, files and counts of each folder of the package."""
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        room = path.parent.relative_to(PACKAGE).as_posix()
        found = Counter({"files": 1, "lines": len(text.splitlines())}) + counted(ast.parse(text))
        rooms.setdefault("top level" if room == "." else room, Counter()).update(found)
    rooms["all"] = sum(rooms.values(), Counter())
    print(f"\n{'room':30}{'files':>8}{'lines':>9}{'isinstance':>12}{'getattr …':>11}{'except Exception':>18}")
    for room, found in rooms.items():
        numbers = found["files"], found["lines"], found["isinstance"], found["looks"], found["broad"]
        print("{:30}{:8,}{:9,}{:12,}{:11,}{:18,}".format(room, *numbers))


if __name__ == "__main__":
    print_events()
    print_rooms()
