"""RD4AD: a decoder rebuilds the teacher's features from a narrow embedding; what it can't rebuild is anomalous.

Deng and Li, Anomaly detection via reverse distillation from one-class embedding, CVPR 2022. Section 3.2 for
the networks, equations 1 to 3 for map and loss. As in the released code, and unlike equation 2, the loss
takes the cosine of a stage's whole map, one vector of C H W numbers; the map takes it position by position.
Different from that code: up-sampling with align_corners False as for every detector here, no smoothing of
the map (InCLAD, Table 7), and a plain residual decoder for backbones other than the two of the paper.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from inclad.backbones import Backbone
from inclad.detectors.detector import Detector, at_least_one, image_scores
from inclad.detectors.training import pack, seeded, train_detector, unpack, update
from inclad.features import Batch, Extractor, Images
from inclad.maps import to_image_size

# Residual blocks of the embedding and of the decoder's stages, deepest first, as in the released code; and
# whether they are bottlenecks. Any other backbone gets two basic blocks a stage.
BLOCKS = {"wide_resnet50_2": ((3, 3, 4, 6), True)}
PLAIN = ((2, 2, 2, 2), False)


class RD4AD(Detector):
    """One-class bottleneck and decoder, trained to rebuild the features of a frozen teacher.

    `sigma` smooths the map, in pixels.
    """

    stages = (1, 2, 3)

    def __init__(
        self,
        *,
        epochs: int = 200,
        batch_size: int = 16,
        learning_rate: float = 5e-3,
        sigma: float = 0.0,
        mixed_precision: bool = False,
        seed: int = 0,
    ):
        at_least_one("rd4ad", epochs=epochs, batch_size=batch_size)
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.sigma = sigma
        self.mixed_precision = mixed_precision
        self.generator = torch.Generator().manual_seed(seed)
        self.bottleneck: OneClassBottleneck | None = None
        self.decoder: Decoder | None = None

    def fit(self, images: Images) -> None:
        if self.decoder is None:
            with seeded(self.generator):
                self.build(images.extractor.backbone)
        networks = nn.ModuleList([self.bottleneck, self.decoder]).train()
        optimizer = torch.optim.Adam(networks.parameters(), lr=self.learning_rate, betas=(0.5, 0.999))

        def step(batch: Batch) -> Tensor:
            teacher = batch.features(self.stages)
            return update(loss(teacher, self.rebuild(teacher)), optimizer)

        train_detector("rd4ad", self, images, step)
        networks.eval()

    @torch.inference_mode()
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        teacher = batch.features(self.stages)
        maps = anomaly_maps(teacher, self.rebuild(teacher), batch.size, self.sigma)
        return maps, image_scores(maps)

    def rebuild(self, teacher: Sequence[Tensor]) -> list[Tensor]:
        """What the decoder makes of the teacher's maps (B, C_s, H_s, W_s): maps of the same shapes."""
        return self.decoder(self.bottleneck(teacher), [maps.shape[-2:] for maps in teacher])

    def build(self, backbone: Backbone) -> None:
        """Make both networks, with first weights from the global generator."""
        channels = tuple(backbone.channels[stage] for stage in self.stages)
        blocks, narrow = BLOCKS.get(backbone.weights.model.split(".")[0], PLAIN)
        device = backbone.mean.device
        self.bottleneck = OneClassBottleneck(channels, blocks[0], narrow).to(device).eval()
        self.decoder = Decoder(channels, blocks[1:], narrow).to(device).eval()

    def state(self) -> dict[str, Tensor]:
        return pack(bottleneck=self.bottleneck, decoder=self.decoder)

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        with seeded(torch.Generator().manual_seed(0)):  # its weights are replaced at once
            self.build(extractor.backbone)
        unpack(state, bottleneck=self.bottleneck, decoder=self.decoder)


def loss(teacher: Sequence[Tensor], rebuilt: Sequence[Tensor]) -> Tensor:
    """Sum over stages of 1 - cosine of the flattened maps (B, C_s, H_s, W_s), mean over the batch; a scalar
    in [0, 2 stages]."""
    return sum(
        (1 - functional.cosine_similarity(t.flatten(1), r.float().flatten(1))).mean()
        for t, r in zip(teacher, rebuilt)
    )


def anomaly_maps(teacher: Sequence[Tensor], rebuilt: Sequence[Tensor], size: int, sigma: float) -> Tensor:
    """Sum over stages of 1 - cosine at every position, brought to (B, size, size) (equations 1 and 3); in
    [0, 2 stages], higher = more anomalous."""
    return sum(
        to_image_size(1 - functional.cosine_similarity(t, r), size, sigma) for t, r in zip(teacher, rebuilt)
    )


class OneClassBottleneck(nn.Module):
    """Multi-scale fusion of the three stages on half the deepest one's grid, and one-class embedding.

    Maps (B, C_s, H_s, W_s) -> (B, 2 C_3, ceil(H_3 / 2), ceil(W_3 / 2)).
    """

    def __init__(self, channels: tuple[int, int, int], blocks: int, narrow: bool):
        super().__init__()
        first, second, third = channels
        self.fuse1 = nn.Sequential(*shrink(first, second), *shrink(second, third))
        self.fuse2 = nn.Sequential(*shrink(second, third))
        self.embed = residual_stage(3 * third, 2 * third, "down", blocks, narrow)
        initialise(self)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        fused = torch.cat([self.fuse1(maps[0]), self.fuse2(maps[1]), maps[2]], 1)
        return self.embed(fused)


class Decoder(nn.Module):
    """The teacher's stages backwards: each doubles the grid and rebuilds one stage's map."""

    def __init__(self, channels: tuple[int, int, int], blocks: tuple[int, int, int], narrow: bool):
        super().__init__()
        widths = (2 * channels[-1], *reversed(channels))
        self.stages = nn.ModuleList(
            residual_stage(before, after, "up", count, narrow)
            for before, after, count in zip(widths, widths[1:], blocks)
        )
        initialise(self)

    def forward(self, embedding: Tensor, grids: Sequence[tuple[int, int]]) -> list[Tensor]:
        rebuilt = []
        for stage, (height, width) in zip(self.stages, reversed(grids)):
            # Doubling gives a row too many where the teacher halved an odd number of rows.
            embedding = stage(embedding)[..., :height, :width]
            rebuilt.append(embedding)
        return rebuilt[::-1]


class Residual(nn.Module):
    """A ResNet's block, basic or `narrow` (a bottleneck of half the width, as in Wide ResNet-50); `scale`
    "down" halves the grid by a strided convolution, "up" doubles it by a transposed one, "same" keeps it."""

    def __init__(self, before: int, after: int, scale: str, narrow: bool):
        super().__init__()
        if narrow:
            half = after // 2
            layers = [convolution(before, half, 1), rescale(half, half, scale), convolution(half, after, 1)]
        else:
            layers = [rescale(before, after, scale), convolution(after, after, 3)]
        parts = [part for layer in layers for part in (layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU())]
        self.body = nn.Sequential(*parts[:-1])
        self.shortcut = nn.Identity()
        if scale != "same":
            way = rescale(before, after, scale) if scale == "up" else convolution(before, after, 1, 2)
            self.shortcut = nn.Sequential(way, nn.BatchNorm2d(after))

    def forward(self, maps: Tensor) -> Tensor:
        return functional.relu(self.body(maps) + self.shortcut(maps))


def residual_stage(before: int, after: int, scale: str, blocks: int, narrow: bool) -> nn.Sequential:
    """Residual blocks in a row; the first one changes width and grid."""
    rest = (Residual(after, after, "same", narrow) for _ in range(blocks - 1))
    return nn.Sequential(Residual(before, after, scale, narrow), *rest)


def shrink(before: int, after: int) -> list[nn.Module]:
    """The layers of a 3 x 3 convolution that halves the grid."""
    return [convolution(before, after, 3, 2), nn.BatchNorm2d(after), nn.ReLU()]


def rescale(before: int, after: int, scale: str) -> nn.Conv2d | nn.ConvTranspose2d:
    """The spatial layer of a block: 3 x 3, or 2 x 2 transposed with stride 2 for "up"."""
    if scale == "up":
        return nn.ConvTranspose2d(before, after, 2, 2, bias=False)
    return convolution(before, after, 3, 2 if scale == "down" else 1)


def convolution(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias, its border padded by zeros."""
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)


def initialise(network: nn.Module) -> None:
    """First weights of convolutions as ResNets have them; transposed ones keep torch's own."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
