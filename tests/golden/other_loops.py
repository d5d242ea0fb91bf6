"""Small trainings without Lightning: a plain loop, Hugging Face's Trainer and Stable-Baselines3."""

import gc
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .constructors import Plain, huggingface_callback, plain_of, stable_baselines3_callback
from .digests import Digests, Records, compared, digest, of_model, of_records
from .trainings import images, net


class Loop:
    """A plain loop over six epochs, with new data in every second one."""

    def __init__(self, name: str | None):
        torch.manual_seed(1)
        self.model = net()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        self.initial = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self.event = self.epoch = 0
        self.records: Records = []
        self.method = Plain() if name is None else plain_of(name, self)
        if name is not None:  # its objects need the parameters of wrapped heads
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)

    def run(self, until: int = 6) -> None:
        """Train up to an epoch."""
        while self.epoch < until:
            if self.epoch and self.epoch % 2 == 0 and self.method.at_event is not None:
                self.event += 1
                self._log(self.method.at_event())
            for x, y in self.batches():
                self.optimizer.zero_grad()
                cross_entropy(self.model(x), y).backward()
                if self.method.before_step is not None:
                    self.method.before_step()
                self.optimizer.step()
                if self.method.after_step is not None:
                    self.method.after_step()
            self._log(self.method.values())
            self.epoch += 1

    def _log(self, values: dict[str, float]) -> None:
        self.records += [(key, self.epoch, value) for key, value in values.items()]

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        x, y = images(24, self.epoch // 2).tensors
        return list(zip(x.split(6), y.split(6), strict=True))

    def losses(self, number: int) -> Iterator[Tensor]:
        return (cross_entropy(self.model(x), y) for x, y in self.batches()[:number])

    def look(self, number: int = 1) -> Tensor:
        return list(self.losses(number))[-1]

    def state(self) -> list[Any]:
        parts = [self.model, self.optimizer, *([self.method.state] if self.method.state is not None else [])]
        return [part.state_dict() for part in parts]

    def resumed(self, name: str | None) -> "Loop":
        """Return another loop with the state of this one."""
        other = Loop(name)
        with tempfile.TemporaryFile() as file:
            torch.save(self.state(), file)
            file.seek(0)
            model, optimizer, *method = torch.load(file, weights_only=False)
        other.model.load_state_dict(model)
        other.optimizer.load_state_dict(optimizer)
        for state in method:
            other.method.state.load_state_dict(state)
        other.epoch, other.event, other.records = self.epoch, self.event, list(self.records)
        return other

    def digests(self) -> Digests:
        random_state = {"random state": digest(torch.get_rng_state())}
        return {**of_model(self.model, [self.optimizer]), **random_state, **of_records(self.records)}


def plain_digests(name: str | None) -> Digests:
    """Return the digests of a plain loop, and of a resumed one those that differ from it."""
    loop = Loop(name)
    loop.run(3)
    resumed = loop.resumed(name)
    whole = _finished(loop)
    return compared(whole, whole, _finished(resumed), "resumed")


def _finished(loop: Loop) -> Digests:
    torch.manual_seed(2)
    loop.run()
    return loop.digests()


def _gpt2() -> Any:
    import transformers

    torch.manual_seed(0)
    dropout = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0)
    size = {"vocab_size": 128, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **dropout))


class Net(nn.Module):
    """A network with units behind normalization layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Embedding(128, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16)
        )
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 128)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(torch.relu(self.norm(self.body(input_ids).flatten(0, 1))))
        return {"loss": cross_entropy(logits, labels.flatten()), "logits": logits}


def huggingface_digests(name: str, when: Any, trainings: int = 1, net: Callable[[], Any] = _gpt2) -> Digests:
    """Return the digests of one or several trainings of a model in Hugging Face's Trainer, the first also resumed."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    gc.freeze()  # its Trainer collects garbage, which takes half a second of all that is imported
    ids = torch.arange(96 * trainings).mul(37).remainder(128).view(trainings, 6, 16)

    def losses(model: Any) -> Iterator[Tensor]:
        return (model(input_ids=rows, labels=rows).loss for rows in ids[0].split(3))

    def made() -> Any:
        method, _, own_losses = name.partition("_with_")
        return None if name == "nothing" else huggingface_callback(method, net(), when, losses if own_losses else None)

    def trainer(folder: str, model: Any, data: Tensor, callback: Any) -> Any:
        how = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "logging_steps": 1, "learning_rate": 1e-2}
        quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "per_device_train_batch_size": 2}
        rows = [{"input_ids": row, "labels": row} for row in data]
        arguments = transformers.TrainingArguments(folder, **how, **quiet)
        training = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[callback] if callback else [])
        training.remove_callback(transformers.PrinterCallback)
        return training

    def digests_of(training: Any) -> Digests:
        logged = [
            (key, entry.get("step"), value)
            for entry in training.state.log_history
            for key, value in entry.items()
            if isinstance(value, int | float) and key not in ("step", "total_flos")
        ]
        return {**of_model(training.model, [training.optimizer.optimizer]), **of_records(logged)}

    with tempfile.TemporaryDirectory() as folder:
        model = net()
        callback = made()
        for data in ids:
            training = trainer(folder, model, data, callback)
            training.train()
        if trainings > 1:
            return digests_of(training)
        resumed = trainer(folder, net(), ids[0], made())
        resumed.train(resume_from_checkpoint=f"{folder}/checkpoint-1")
        whole = digests_of(training)
        return compared(whole, whole, digests_of(resumed), "resumed")


def stable_baselines3_digests(name: str, algorithm: str, when: Any, continued: bool = False) -> Digests:
    """Return the digests of a training in Stable-Baselines3, or of one that is saved, loaded and continued."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.logger import KVWriter, Logger

    class Memory(KVWriter):
        def __init__(self) -> None:
            self.records: Records = []

        def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
            self.records += [(k, step, float(v)) for k, v in key_values.items() if isinstance(v, int | float)]

        def close(self) -> None: ...

    def made() -> Any:
        off = {"learning_starts": 16, "batch_size": 8, "buffer_size": 200, "train_freq": 4}
        on = {"n_steps": 16, "batch_size": 16, "n_epochs": 1}
        size = {"policy_kwargs": {"net_arch": [8, 8]}, "seed": 0, "device": "cpu"}
        environment = "Pendulum-v1" if algorithm == "SAC" else "CartPole-v1"
        return getattr(sb3, algorithm)("MlpPolicy", environment, **size, **(on if algorithm == "PPO" else off))

    def learn(model: Any, steps: int) -> None:
        model.set_logger(Logger(None, [writer]))
        callback = None if name == "nothing" else stable_baselines3_callback(name, made().policy, when)
        model.learn(steps, callback, log_interval=1, reset_num_timesteps=not model.num_timesteps)
        model.logger.dump(model.num_timesteps)

    writer, model = Memory(), made()
    if continued:
        with tempfile.TemporaryDirectory() as folder:
            learn(model, 48)
            model.save(f"{folder}/model")
            model = getattr(sb3, algorithm).load(f"{folder}/model", env=model.env)
    learn(model, 96 - model.num_timesteps)
    optimizers = [part.optimizer for part in model.policy.modules() if hasattr(part, "optimizer")]
    return {**of_model(model.policy, optimizers), **of_records(writer.records)}
