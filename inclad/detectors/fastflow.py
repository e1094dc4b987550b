"""FastFlow: a normalising flow a stage turns normal features into noise of a standard Gaussian.

Yu et al., FastFlow: unsupervised anomaly detection and localization via 2D normalizing flows, 2021, section
3. The paper's code was never released; this follows the public re-implementation that others build on: a
trainable layer norm before each flow (not in the paper), coupling blocks as in FrEIA's AllInOneBlock, and a
map that is made of exp(-0.5 mean z^2), so that far from normal it is 0 up to rounding and can't tell bad from
worse. The layer norm's gain is no part of the log-determinant: the loss is not an exact likelihood.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from inclad.detectors.detector import Detector, at_least_one, image_scores
from inclad.detectors.training import pack, seeded, train_detector, unpack, update
from inclad.features import Batch, Extractor, Images
from inclad.maps import to_image_size

CLAMP = 2.0  # bound of a coupling's log scale


class FastFlow(Detector):
    """A flow for each of the three stages of the frozen backbone.

    `flow_steps` coupling blocks a flow; `hidden_ratio` is the width inside a block's network over the width
    of its input. `sigma` smooths the map, in pixels.
    """

    stages = (1, 2, 3)

    def __init__(
        self,
        *,
        epochs: int = 200,
        batch_size: int = 8,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        flow_steps: int = 8,
        hidden_ratio: float = 1.0,
        sigma: float = 0.0,
        mixed_precision: bool = False,
        seed: int = 0,
    ):
        at_least_one("fastflow", epochs=epochs, batch_size=batch_size, flow_steps=flow_steps)
        if not 0 < hidden_ratio <= 16:
            raise ValueError(f"fastflow: hidden_ratio: {hidden_ratio} is not above 0 and at most 16")
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.flow_steps = flow_steps
        self.hidden_ratio = hidden_ratio
        self.sigma = sigma
        self.mixed_precision = mixed_precision
        self.generator = torch.Generator().manual_seed(seed)
        self.flows: nn.ModuleList | None = None

    def fit(self, images: Images) -> None:
        if self.flows is None:
            with seeded(self.generator):
                self.build(images.extractor)
        self.flows.train()
        optimizer = torch.optim.Adam(
            self.flows.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
        )

        def step(batch: Batch) -> Tensor:
            return update(loss(self.transform(batch)), optimizer)

        train_detector("fastflow", self, images, step)
        self.flows.eval()

    @torch.inference_mode()
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        maps = anomaly_maps([z for z, _ in self.transform(batch)], batch.size, self.sigma)
        return maps, image_scores(maps)

    def transform(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """z (B, C_s, H_s, W_s) and log-determinant (B,) of every stage."""
        return [flow(maps) for flow, maps in zip(self.flows, batch.features(self.stages))]

    def build(self, extractor: Extractor) -> None:
        """Make the flows, with first weights from the global generator."""
        # The layer norms have one gain a position: their grids are those of the backbone at this image size.
        size = extractor.image_size
        blank = extractor.backbone(torch.zeros(1, 3, size, size, device=extractor.device))
        shapes = dict(zip(extractor.backbone.stages, (tuple(maps.shape[1:]) for maps in blank)))
        shapes = [shapes[stage] for stage in self.stages]
        # 3 x 3 throughout for backbones as narrow as ResNet-18, every other kernel 1 x 1 for wide ones.
        kernels = [3, 1] if shapes[0][0] >= 256 else [3]
        kernels = [kernels[i % len(kernels)] for i in range(self.flow_steps)]
        flows = nn.ModuleList(Flow(shape, kernels, self.hidden_ratio) for shape in shapes)
        self.flows = flows.to(extractor.device).eval()

    def state(self) -> dict[str, Tensor]:
        return pack(flows=self.flows)

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        with seeded(torch.Generator().manual_seed(0)):  # its weights are replaced at once
            self.build(extractor)
        unpack(state, flows=self.flows)


def loss(transformed: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Sum over stages of the negative log-likelihood up to a constant, 0.5 sum z^2 - log|det J|, mean over the
    batch; a scalar."""
    return sum((0.5 * z.square().sum((1, 2, 3)) - logdet).mean() for z, logdet in transformed)


def anomaly_maps(latents: Sequence[Tensor], size: int, sigma: float) -> Tensor:
    """Mean over stages of -exp(-0.5 mean over channels of z^2), brought to (B, size, size); in [-1, 0],
    higher = more anomalous."""
    maps = [to_image_size(-(-0.5 * z.square().mean(1)).exp(), size, sigma) for z in latents]
    return torch.stack(maps).mean(0)


class Flow(nn.Module):
    """Layer norm, then coupling blocks: maps (B, C, H, W) -> z of that shape and log-determinant (B,)."""

    def __init__(self, shape: tuple[int, int, int], kernels: Sequence[int], hidden_ratio: float):
        super().__init__()
        self.norm = nn.LayerNorm(shape)
        self.blocks = nn.ModuleList(Coupling(shape[0], kernel, hidden_ratio) for kernel in kernels)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        z, total = self.norm(maps), 0.0
        for block in self.blocks:
            z, logdet = block(z)
            total = total + logdet
        return z, total

    def inverse(self, z: Tensor) -> Tensor:
        """Normed maps of z: all but the layer norm can be undone."""
        for block in reversed(self.blocks):
            z = block.inverse(z)
        return z


class Coupling(nn.Module):
    """Affine coupling block: the first half of the channels scales and shifts the second one, position by
    position; then every channel is scaled and shifted, and all change places in a fixed random order.

    The halves' log scale is softly clamped, 2 tanh(0.1 a); the global scale, softplus with its sharpness of
    0.5, starts at 1.
    """

    def __init__(self, channels: int, kernel: int, hidden_ratio: float):
        super().__init__()
        self.changed = channels // 2
        self.kept = channels - self.changed
        hidden = max(1, int(self.kept * hidden_ratio))
        self.subnet = nn.Sequential(
            nn.Conv2d(self.kept, hidden, kernel, padding="same"),
            nn.ReLU(),
            nn.Conv2d(hidden, 2 * self.changed, kernel, padding="same"),
        )
        start = 2 * torch.tensor(5.0).expm1().log()
        self.global_scale = nn.Parameter(start.repeat(channels).view(-1, 1, 1))
        self.global_shift = nn.Parameter(torch.zeros(channels, 1, 1))
        self.register_buffer("order", torch.randperm(channels))

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = maps.split((self.kept, self.changed), 1)
        log_scale, shift = self.affine(kept)
        scale = self.scale()
        z = torch.cat([kept, changed * log_scale.exp() + shift], 1) * scale + self.global_shift
        positions = maps.shape[2] * maps.shape[3]
        return z[:, self.order], log_scale.sum((1, 2, 3)) + positions * scale.log().sum()

    def inverse(self, z: Tensor) -> Tensor:
        maps = (z[:, self.order.argsort()] - self.global_shift) / self.scale()
        kept, changed = maps.split((self.kept, self.changed), 1)
        log_scale, shift = self.affine(kept)
        return torch.cat([kept, (changed - shift) * (-log_scale).exp()], 1)

    def affine(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Log scale in (-2, 2) and shift of the other half, (B, changed, H, W) float32 each."""
        raw, shift = (0.1 * self.subnet(kept).to(kept.dtype)).chunk(2, 1)
        return CLAMP * raw.tanh(), shift

    def scale(self) -> Tensor:
        """Positive scale of every channel, (C, 1, 1)."""
        return 0.1 * functional.softplus(self.global_scale, beta=0.5)
