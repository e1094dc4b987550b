"""Training of the detectors that learn by gradients: seeded, watched, stopped when a loss is no number."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from inclad.features import Batch, Images


class Trained(Protocol):
    """What a detector that trains by gradients has."""

    epochs: int
    batch_size: int
    mixed_precision: bool
    generator: torch.Generator


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed torch, numpy and random from `generator` inside, for what takes no generator of its own (first
    weights, dropout); outside they go on as if nothing had happened."""
    seed = int(torch.randint(2**31, (), generator=generator))
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def train(
    name: str,
    images: Images,
    step: Callable[[Batch], Tensor],
    *,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
    mixed_precision: bool = False,
) -> list[float]:
    """Go through `images` `epochs` times, each time in a new order; the mean loss of every epoch.

    `step` makes one update from a batch and returns its loss, a scalar. A bar on the terminal or in the
    notebook shows loss and time left. `mixed_precision` computes in bfloat16 where torch deems it safe.
    Raises FloatingPointError, naming epoch, step and what to change, when a loss is not finite.
    """
    losses: list[float] = []
    with seeded(generator), tqdm(total=epochs, desc=name, unit="epoch", leave=False) as bar:
        for epoch in range(1, epochs + 1):
            total = 0.0
            for number, batch in enumerate(images.shuffled(generator, batch_size), start=1):
                with torch.autocast(images.extractor.device.type, torch.bfloat16, enabled=mixed_precision):
                    loss = float(step(batch))
                if not math.isfinite(loss):
                    raise FloatingPointError(
                        f"{name}: the loss is {loss} in epoch {epoch}, step {number}: the training diverged, "
                        "most likely learning_rate is too high for these images; lower it"
                    )
                total += loss * len(batch)
            losses.append(total / len(images))
            bar.set_postfix(loss=f"{losses[-1]:.4g}")
            bar.update()
    return losses


def train_detector(
    name: str, detector: Trained, images: Images, step: Callable[[Batch], Tensor]
) -> list[float]:
    """`train` as the detector's own options say."""
    return train(
        name,
        images,
        step,
        epochs=detector.epochs,
        batch_size=detector.batch_size,
        generator=detector.generator,
        mixed_precision=detector.mixed_precision,
    )


def update(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """One step of the optimiser down the gradient of `loss`; the loss without its graph."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def pack(**modules: nn.Module) -> dict[str, Tensor]:
    """The modules' parameters and buffers, each named module.tensor."""
    return {
        f"{name}.{key}": value
        for name, module in modules.items()
        for key, value in module.state_dict().items()
    }


def unpack(state: dict[str, Tensor], **modules: nn.Module) -> None:
    """Take over what `pack` gave; the modules must be built alike."""
    for name, module in modules.items():
        prefix = f"{name}."
        module.load_state_dict(
            {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        )
