"""Models, data and a loop of a reader of pages on trainings in other libraries."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader


def batches(seed: int, number: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(number)
    ]


def network(outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))


def names(folder: object) -> dict[str, object]:
    """The names that the page uses and does not define."""
    import gymnasium
    import pytorch_lightning
    import transformers
    from torchrl.data import Categorical
    from torchrl.modules import QValueActor

    torch.manual_seed(0)
    model, q_network, target_network = network(3), network(2), network(2)

    class Module(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network(3)

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    q_optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-2)
    environment = gymnasium.make("CartPole-v1")
    state = {"observation": torch.tensor(environment.reset(seed=0)[0])}

    def train_one_step(step):
        with torch.no_grad():
            action = int(q_network(state["observation"]).argmax())
        following, reward, terminated, truncated, _ = environment.step(action)
        following = torch.tensor(following)
        with torch.no_grad():
            target = reward + 0.99 * target_network(following).max() * (not terminated)
        (q_network(state["observation"])[action] - target).square().backward()
        q_optimizer.step()
        q_optimizer.zero_grad()
        if step % 50 == 49:
            target_network.load_state_dict(q_network.state_dict())
        state["observation"] = torch.tensor(environment.reset()[0]) if terminated or truncated else following

    actor, critic = network(2), network(2)
    algorithm = SimpleNamespace(actor=actor, critic=critic)
    algorithm.optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()])

    def learn(iterations):
        for _ in range(iterations):
            observations = torch.randn(8, 4)
            (actor(observations) + critic(observations)).square().mean().backward()
            algorithm.optimizer.step()
            algorithm.optimizer.zero_grad()

    config = transformers.GPT2Config(vocab_size=128, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    text = torch.tensor(list((b"the same old text, " * 30)[:512])).view(2, 16, 16)
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "criterion": nn.CrossEntropyLoss(),
        "months": [batches(0), batches(1)],
        "own_module": Module(),
        "loader": DataLoader(batches(0), batch_size=None),
        "language_model": transformers.GPT2LMHeadModel(config),
        "arguments": transformers.TrainingArguments(
            str(folder), max_steps=3, per_device_train_batch_size=4, report_to="none", disable_tqdm=True, use_cpu=True
        ),
        "texts": [[{"input_ids": ids, "labels": ids} for ids in part] for part in text],
        "q_network": q_network,
        "q_optimizer": q_optimizer,
        "target_network": target_network,
        "environments": [gymnasium.make("CartPole-v1") for _ in range(2)],
        "new_environment": gymnasium.make("CartPole-v1"),
        "runner": SimpleNamespace(alg=algorithm, learn=learn),
        "total_steps": 200,
        "train_one_step": train_one_step,
        "actor": QValueActor(network(2), in_keys=["observation"], spec=Categorical(2)),
    }
