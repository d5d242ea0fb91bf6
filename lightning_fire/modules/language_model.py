"""Language modelling on text that arrives in phases, as the paper trains it."""

import json
import time
from collections.abc import Sequence
from typing import Any

import torch
from lightning.fabric.utilities.throughput import get_available_flops
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities.enums import GradClipAlgorithmType
from torch import Tensor, nn
from torch.nn.functional import log_softmax, nll_loss
from torch.optim import AdamW

from lightning_fire._lightning import attached_trainer, is_logging_step, loss_scaler, undeclared
from lightning_fire._private import is_a
from lightning_fire.contracts import HasFlopsPerToken, HasTexts, implements
from lightning_fire.modules.chunk_module import ChunkModule
from lightning_fire.modules.chunk_schedule import Decay
from lightning_fire.modules.mean_loss import MeanLoss
from lightning_fire.modules.network_blocks import checkpoint_activations, shard_by_block


class LanguageModel(ChunkModule):
    """Trains a network to predict the next token with AdamW; the learning rate restarts in each phase of the data.

    The network takes tokens, int64 `(batch, length)`, and returns logits `(batch, length, vocab_size)`, or an object
    with such `logits`: our `GPT`, or any causal language model of Hugging Face transformers. Weight decay is on
    matrices and embeddings only (two dimensions or more), as in nanoGPT. Under Lightning's `ModelParallelStrategy` the
    network is sharded by block (FSDP2), see docs/scale.md.

    Logs:

    - at the end of each epoch (`TextDataModule`: after `steps_per_epoch` steps) `train/loss`, in nats per token,
      `train/tokens_per_second` of all devices together, without validation, and `train/mfu`, the fraction of the
      devices' peak FLOP/s that the model needs, where both are known;
    - every `log_every_n_steps` steps `train/loss_step`, of one micro-batch;
    - at each validation `val/loss/{text}` for each text of the present phase, `val/loss`, their mean by weight in the
      phase, and `val/perplexity`, its exponential;
    - at the start of every phase but the first, after the callbacks and before the first batch,
      `val/loss_at_new_data`, and the same for each text.

    Args:
        net: The network.
        learning_rate: Learning rate after the warm-up (paper, table "Detailed settings in continual pretraining of
            LLMs": 6e-4).
        min_learning_rate: Learning rate at the end of a phase (paper: 6e-5).
        warmup: Length of the linear rise of the learning rate from 0: a number of optimizer steps, or a fraction of the
            phase in [0, 1); one for all phases, or one per phase, the last for all further ones (paper: 2000 steps,
            then 10 %).
        decay: Decay after that: `linear` (paper), `cosine` (its code) or `none`; `infinite`: a cosine in the first
            phase, then constant at `min_learning_rate` without further warm-ups.
        weight_decay: Weight decay of AdamW (paper: 0.1).
        betas: Betas of AdamW (nanoGPT: 0.9 and 0.95).
        compile: Run the network through `torch.compile`, which takes a minute at first. Checkpoints of compiled and of
            plain networks are interchangeable.
        tf32: On a GPU, multiply float32 matrices in TF32, `torch.set_float32_matmul_precision("high")`; in the whole
            process, FIRE's projection included.
        activation_checkpointing: Recompute the activations of each block in the backward pass: less memory, up to a
            third more computation.

    Raises:
        ValueError: If an argument is out of its range; when training starts, if the texts have more tokens than the
            network knows, or longer blocks, or if the strategy has tensor parallelism.
    """

    def __init__(
        self,
        net: nn.Module,
        learning_rate: float = 6e-4,
        min_learning_rate: float = 6e-5,
        warmup: int | float | Sequence[int | float] = (2000, 0.1),
        decay: Decay = "linear",
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        compile: bool = False,
        tf32: bool = False,
        activation_checkpointing: bool = False,
    ):
        super().__init__()
        self.warmup = list(warmup) if isinstance(warmup, Sequence) else [warmup]
        if not self.warmup or not all(v >= 0 if isinstance(v, int) else 0 <= v < 1 for v in self.warmup):
            raise ValueError(f"`warmup` must be whole numbers of steps, or fractions in [0, 1), got {warmup}")
        if not learning_rate > 0 or not 0 <= min_learning_rate <= learning_rate:
            raise ValueError(
                "`learning_rate` must be positive and `min_learning_rate` from 0 to it, got"
                f" {learning_rate} and {min_learning_rate}"
            )
        if weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"`weight_decay` and `betas` must be those of AdamW, got {weight_decay} and {betas}")
        if decay not in ("linear", "cosine", "none", "infinite"):
            raise ValueError(f"`decay` must be 'linear', 'cosine', 'none' or 'infinite', got {decay!r}")
        self.net, self.tf32 = net, tf32
        if activation_checkpointing:
            checkpoint_activations(net)
        if compile:
            self.net.compile()
        self.learning_rate, self.min_learning_rate, self.decay = learning_rate, min_learning_rate, decay
        self.weight_decay, self.betas = weight_decay, (betas[0], betas[1])
        self.train_loss = MeanLoss()
        self.val_losses: Any = nn.ModuleList()  # a MeanLoss for each text
        self._tokens, self._began = 0, 0.0  # of this epoch, on this device
        self.step_loss: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits `(batch, length, vocab_size)` of tokens `(batch, length)`, int64."""
        output = self.net(tokens)
        return output if isinstance(output, Tensor) else output.logits

    def configure_model(self) -> None:
        if is_a(getattr(attached_trainer(self), "strategy", None), "ModelParallelStrategy"):
            shard_by_block(self.net, self.device_mesh, self.trainer.precision)

    def setup(self, stage: str) -> None:
        """Set the precision of TF32; check that network and texts fit."""
        if self.tf32 and self.trainer.strategy.root_device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        data, config = undeclared(self.trainer).datamodule, getattr(self.net, "config", None)
        for ours, theirs, what in (
            ("vocab_size", "vocab_size", "different tokens"),
            ("block_size", "max_position_embeddings", "tokens in a block"),  # GPT-2's config has this name too
        ):
            wanted = getattr(data, ours, None)
            has = getattr(self.net, ours, getattr(config, theirs, None))
            if wanted is not None and has is not None and wanted > has:
                raise ValueError(f"the texts have {wanted} {what}, but {type(self.net).__name__} has `{ours}`={has}")
        if len(self.val_losses) != len(self._texts):
            self.val_losses = nn.ModuleList(MeanLoss() for _ in self._texts)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch of tokens and of those that follow each, both `(batch, length)`."""
        tokens, targets = batch
        loss = _cross_entropy(self(tokens), targets)
        self.train_loss.update(loss, targets.numel())
        self._tokens += targets.numel()
        self.step_loss = loss.detach()
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        if self._began == 0.0:
            self._began = self._now()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the loss when loggers write, and the speed before validation."""
        written = is_logging_step(self.trainer)  # more would cost a small GPT 3 % of its speed
        if self.step_loss is not None and (written or batch_idx == 0):
            bar = self.trainer.progress_bar_callback
            by_bar = bar is not None and not getattr(bar, "shows_step_loss", False)
            self.log("train/loss_step", self.step_loss, prog_bar=by_bar)  # with it Lightning waits at each batch
        if not self.trainer.is_last_batch:
            return
        speed = self._tokens / (self._now() - self._began)
        how: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": self._distributed}
        self.log("train/tokens_per_second", speed * self.trainer.world_size, **how)
        dtype = {"bf16": torch.bfloat16, "16-m": torch.float16, "16-t": torch.float16}.get(self.trainer.precision[:4])
        try:
            peak = get_available_flops(self.device, dtype or torch.float32)
        except (ValueError, RuntimeError):  # a device unknown to Lightning
            peak = None
        if peak:
            self.log("train/mfu", self.flops_per_token(batch[0].shape[1]) * speed / peak, **how)

    def on_train_epoch_end(self) -> None:
        self._tokens, self._began = 0, 0.0
        if self.train_loss.update_called:  # not if a subclass overrides training_step
            self.log("train/loss", self.train_loss)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Add a batch of one text: tokens, those that follow each, and, if there are several, the text's number."""
        tokens, targets, *text = batch
        loss = _cross_entropy(self(tokens), targets)
        self.val_losses[int(text[0]) if text else 0].update(loss, targets.numel())

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def on_validation_start(self) -> None:
        self._validation_began = self._now()

    def on_validation_end(self) -> None:
        """Exclude validation time from tokens per second."""
        if self._began:
            self._began += self._now() - self._validation_began

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self._summary("val/", "loss"), prog_bar=True, sync_dist=self._distributed)

    def on_test_epoch_end(self) -> None:
        self.log_dict(self._summary("test/", "loss"), sync_dist=self._distributed)

    def _values_at_new_data(self) -> dict[str, Tensor]:
        return self._summary("val/", "loss_at_new_data")

    def _summary(self, stage: str, name: str) -> dict[str, Tensor]:
        """Return the validation losses over all ranks by key, and reset them."""
        datamodule = undeclared(self.trainer).datamodule
        weights = datamodule.text_weights if implements(datamodule, HasTexts) else {"": 1.0}
        losses = {}
        for text, loss in zip(self._texts, self.val_losses, strict=True):
            loss.update(torch.zeros((), device=self.device), 0)  # this rank may have had no batch of it
            value = loss.compute()
            if loss.samples_of_all:  # none, if validation is limited to a few batches
                losses[text] = value
            loss.reset()
        seen = sum(weights[text] for text in losses)
        total = sum(weights[text] / seen * loss for text, loss in losses.items())
        values = {f"{stage}{name}/{text}": loss for text, loss in losses.items() if text}
        if name == "loss":
            values[f"{stage}perplexity"] = total.exp()
        return {f"{stage}{name}": total, **values}

    @property
    def _texts(self) -> Sequence[str]:
        datamodule = undeclared(self.trainer).datamodule
        return datamodule.texts if implements(datamodule, HasTexts) else [""]

    def configure_optimizers(self) -> Any:
        """Return AdamW, and the schedule of its learning rate in each phase."""
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        fused = loss_scaler(self.trainer) is None  # Lightning does not clip scaled gradients of a fused optimizer
        optimizer = AdamW(groups, lr=self.learning_rate, betas=self.betas, fused=fused)
        return self._scheduled(optimizer, self.warmup, self.decay, self.min_learning_rate / self.learning_rate)

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip as Lightning does; in `bf16-mixed` also for a fused optimizer, as gradients are not scaled."""
        plugin = self.trainer.precision_plugin
        if isinstance(plugin, MixedPrecision) and plugin.scaler is None and gradient_clip_val:
            algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision.clip_gradients(plugin, optimizer, gradient_clip_val, algorithm)
        else:
            super().clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save entries for `diagnose` and `reinit`: the flag of a causal language model, and Hugging Face settings."""
        config: Any = getattr(self.net, "config", None)
        settings = json.loads(config.to_json_string(use_diff=False)) if hasattr(config, "to_json_string") else {}
        name = type(self.net).__name__.removeprefix("FSDP")  # of the class that FSDP2 derives
        name += "" if name.endswith(("ForCausalLM", "LMHeadModel")) else "ForCausalLM"
        checkpoint["model_config"] = {**settings, "architectures": [name]}

    def flops_per_token(self, length: int) -> int:
        """Return the FLOPs of training on one token of a block of `length`: the network's value, or 6 per parameter."""
        if implements(self.net, HasFlopsPerToken):
            return self.net.flops_per_token(length)
        return 6 * sum(parameter.numel() for parameter in self.net.parameters())

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    dtype = torch.promote_types(logits.dtype, torch.float32)  # in half precision a loss has steps of 0.01
    return nll_loss(log_softmax(logits.flatten(0, 1), -1, dtype=dtype), targets.flatten())  # no copy of the logits
