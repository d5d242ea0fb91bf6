"""Cost of an event of DASH, against the published implementation, side by side in one run.

    python benchmarks/dash_cost.py [--net small] [--batch 256] [--batches 196] [--alpha 0.3] [--rounds 3] [--json FILE]

Both take the EMA of the negative gradients over batches of the new data, and shrink each weight by its cosine with
it. Published, as the authors of FIRE describe and publish it: through all of the new data, loaded by
`PIL`, `ToTensor` and `Normalize` without worker processes; the gradients of a copy of the network, averaged one
parameter after another. Ours: `DASH` in a Trainer, on the batches that count, 26 for α = 0.3 and 88 for α = 0.1, from
the in-memory pipeline; it also computes the metrics of the weights (DfI, SFE).

Four are timed in turn: ours; the published way through all batches, of which those that ours looks at are the last;
the published way through these only, which shows what the same number of gradients costs; and these gradients alone,
on tensors that are ready. The weights after the published ways are compared with ours, all of them together, in the
Frobenius norm: after the same batches they are the same but for rounding (at most 1e-5 is checked, relative); after
all batches but for the weight of the earlier batches in the average, (1 − α)^26 ≤ 1e-4 (at most 5e-3: the
weights of 1×1 convolutions shrink by their sign or not at all, and a few signs change).

Random images 3 × 32 × 32; 196 batches of 256 are an epoch of CIFAR-10.
"""

import copy
import statistics
from functools import partial

import torch
from data_pipeline import CHANNELS, OneByOne
from machine import parser_of, publish, refuse
from networks import NETS
from paired import in_turn, ratio, seconds
from quiet_trainer import quiet_trainer
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_fire import DASH, AtEpochs, Log, PlasticityCallback
from lightning_fire.data import ChunkedDataModule, Continual
from lightning_fire.modules import Classifier

MINIMUM, EPOCH = 0.05, 1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, STD = CHANNELS["cifar-10"]
State = dict[str, Tensor]
Timed = tuple[float, State]  # seconds, and the weights after the event


class NoTraining(Classifier):
    """Leaves out the batches, so that the weights stay those after the event."""

    def on_train_batch_start(self, *args):
        return -1


class TimedCallback(PlasticityCallback):
    """Notes how long an event takes."""

    def act(self, trainer, pl_module, clock):
        values = {}
        self.seconds = seconds(lambda: values.update(super(TimedCallback, self).act(trainer, pl_module, clock)))
        return values


class Event:
    """One event, run in several ways.

    Args:
        net: Name of the network.
        batch: Images in a batch.
        batches: Batches of the new data.
        alpha: α of DASH.
    """

    def __init__(self, net: str, batch: int, batches: int, alpha: float):
        self.net, self.batch, self.alpha = net, batch, alpha
        generator = torch.Generator().manual_seed(0)
        size = batch * batches
        self.images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, 10, (size,), generator=generator)
        data = self.data()
        sampler = data.train_dataloader().sampler
        sampler.set_epoch(EPOCH)
        self.count = min(DASH(alpha).batches, batches)
        order = data.train_indices(0)[sampler.order()]
        self.looked_at, self.others = order.split([batch * self.count, batch * (batches - self.count)])
        scaled = (self.images[self.looked_at].float() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(
            STD
        ).view(3, 1, 1)
        self.ready = list(zip(scaled.split(batch), self.labels[self.looked_at].split(batch), strict=True))

    def data(self) -> ChunkedDataModule:
        tensors = TensorDataset(self.images, self.labels)
        return ChunkedDataModule(tensors, tensors, Continual(1, epochs=EPOCH + 1), self.batch, mean=MEAN, std=STD)

    def start(self) -> nn.Module:
        """Return the network before the event."""
        torch.manual_seed(0)
        return NETS[self.net](num_classes=10)

    def ours(self) -> Timed:
        """Let `DASH` act in a Trainer."""
        method = TimedCallback(DASH(self.alpha, MINIMUM), AtEpochs([EPOCH]), log=Log(curvature=False))
        module = NoTraining(self.start(), num_classes=10, warmup=0)
        trainer = quiet_trainer(method, max_epochs=EPOCH + 1, limit_val_batches=0, reload_dataloaders_every_n_epochs=1)
        trainer.fit(module, datamodule=self.data())
        return method.seconds, weights_of(module.net)

    def published(self, everything: bool) -> Timed:
        """Go through all batches, or those that ours looks at, in the published way."""
        net = self.start().to(DEVICE)
        order = torch.cat([self.others, self.looked_at]) if everything else self.looked_at
        dataset = OneByOne(self.images, self.labels, MEAN, STD)
        loader = DataLoader(dataset, self.batch, sampler=order.tolist())
        return seconds(published, net, loader, self.alpha), weights_of(net)

    def gradients(self) -> Timed:
        """Derive by the batches that ours looks at, and do nothing else."""
        net = self.start().to(DEVICE)

        def derive() -> None:
            for images, labels in self.ready:
                net.zero_grad()
                cross_entropy(net(images.to(DEVICE)), labels.to(DEVICE)).backward()

        return seconds(derive), {}


def published(net: nn.Module, loader: DataLoader, alpha: float) -> None:
    """DASH as published, written from its description; shrinks the network in place."""
    probe = copy.deepcopy(net)
    probe.train()
    direction = {name: torch.zeros_like(parameter) for name, parameter in probe.named_parameters()}
    for images, labels in loader:
        images, labels = images.to(DEVICE), labels.to(DEVICE)
        probe.zero_grad()
        cross_entropy(probe(images), labels).backward()
        for name, parameter in probe.named_parameters():
            direction[name] = (1 - alpha) * direction[name] - alpha * parameter.grad
    with torch.no_grad():
        for name, layer in net.named_modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                shrink(layer.weight, direction[f"{name}.weight"])
                if layer.bias is not None:
                    shrink(layer.bias, direction[f"{name}.bias"])


def shrink(weight: Tensor, direction: Tensor) -> None:
    """Shrink the kernels of a convolution, the rows of a matrix or a whole bias by their cosine."""
    first = min(2, weight.ndim - 1)
    parts = weight.flatten(first)
    cosine = cosine_similarity(parts, direction.flatten(first), dim=-1, eps=0).nan_to_num(0).clamp(MINIMUM, 1)
    weight.copy_((parts * cosine.unsqueeze(-1)).view_as(weight))


def weights_of(net: nn.Module) -> State:
    return {name: parameter.detach().cpu().clone() for name, parameter in net.named_parameters()}


def difference(one: State, other: State) -> float:
    """Return how far all weights together are from others, relative, in the Frobenius norm."""
    squares = sum((value - other[name]).double().square().sum() for name, value in one.items())
    return float((squares / sum(value.double().square().sum() for value in other.values())).sqrt())


def table(event: Event, rounds: int, batches: int) -> dict[str, dict[str, float | list[float]]]:
    """Measure; print and return a row for each way."""
    label, same = f"published, all {batches} batches", f"published, the same {event.count}"
    ways = {
        "ours": event.ours,
        label: partial(event.published, everything=True),
        same: partial(event.published, everything=False),
        "the gradients alone": event.gradients,
    }
    found = in_turn(ways, rounds)
    ours = found["ours"][0][1]
    rows = {}
    for name, events in found.items():
        times = [taken for taken, _ in events]
        middle, least, most = ratio(times, [taken for taken, _ in found["ours"]])
        rows[name] = {
            "seconds": round(statistics.median(times), 4),
            "times_ours": round(middle, 3),
            "range": [round(least, 3), round(most, 3)],
        }
        text = f"{name:30s} {rows[name]['seconds']:10.4f} s   × {middle:7.3f} ({least:.3f} – {most:.3f})"
        if events[0][1] and name != "ours":
            rows[name]["difference"] = difference(ours, events[0][1])
            text += f"   difference {rows[name]['difference']:.1e}"
        print(text, flush=True)
    for name, bound in ((same, 1e-5), (label, 5e-3)):
        if rows[name]["difference"] > bound:
            refuse(f"the weights of {name!r} differ by more than {bound:.0e} from ours")
    return rows


def main() -> None:
    """Run and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--net", choices=("small", "resnet-18"), default="small")
    parser.add_argument("--batch", type=int, default=256, help="images in a batch")
    parser.add_argument("--batches", type=int, default=196, help="batches of the new data")
    parser.add_argument("--alpha", type=float, default=0.3, help="weight of a batch in the exponential moving average")
    parser.add_argument("--rounds", type=int, default=3, help="events timed of each way, in turn")
    options = parser.parse_args()
    torch.backends.cudnn.deterministic = True  # so that weights can be compared
    event = Event(options.net, options.batch, options.batches, options.alpha)
    rows = table(event, options.rounds, options.batches)
    publish(
        {"ways": rows, **{key: getattr(options, key) for key in ("net", "batch", "batches", "alpha")}}, options.json
    )


if __name__ == "__main__":
    main()
