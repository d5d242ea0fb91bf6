"""Your images and your network, for `recipe.yaml`."""

from pathlib import Path

from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from lightning_fire.data import ChunkedDataModule
from lightning_fire.data.protocols import Protocol, warm_start


class Images(ChunkedDataModule):
    """Images in folders, one for each class, that arrive in chunks."""

    def __init__(
        self,
        folder: str = "images",
        size: int = 32,
        protocol: Protocol = warm_start,
        batch_size: int = 64,
        seed: int = 0,
        num_workers: int = 0,
    ):
        super().__init__(protocol=protocol, batch_size=batch_size, seed=seed, num_workers=num_workers)
        self.folder, self.size = Path(folder), size

    def load(self) -> tuple[Dataset, Dataset]:
        """Return the training set and the test set: pairs of an image (3, size, size) and its class."""
        steps = transforms.Compose([transforms.Resize((self.size, self.size)), transforms.ToTensor()])
        train, test = (ImageFolder(str(self.folder / part), transform=steps) for part in ("train", "test"))
        return train, test


class Network(nn.Module):
    """Network from images (N, 3, height, width) to logits (N, num_classes)."""

    def __init__(self, num_classes: int = 10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * 16, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.features(images))
