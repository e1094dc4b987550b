"""EfficientAD's networks: the patch description network of teacher and student, and the autoencoder.

Batzner, Heckler and Koenig, EfficientAD: accurate visual anomaly detection at millisecond-level latencies, WACV
2024, appendix A. Both take pixels (B, 3, size, size) in [0, 1] and give maps of the same side.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

MODEL_SIZES = ("small", "medium")
LEAST_SIZE = 64  # five halvings leave the autoencoder 2 x 2 positions, the PDN sees 8 x 8 of 16 x 16 patches
BORDER = 4  # positions a side that the PDN, which pads nothing, does not describe; they are 4 pixels apart
# ImageNet's, as for the released teachers.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def pdn(model_size: str, width: int, out: int) -> nn.Sequential:
    """The patch description network, (B, 3, size, size) normalised -> (B, out, side, side).

    Each output sees 33 x 33 pixels and no padding. `width` is 128 in the paper; the medium network has twice
    as many channels and two 1 x 1 convolutions more. Layers are numbered as in the released teachers.
    """
    if model_size == "small":
        return nn.Sequential(
            nn.Conv2d(3, width, 4),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(width, 2 * width, 4),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3),
            nn.ReLU(),
            nn.Conv2d(2 * width, out, 4),
        )
    return nn.Sequential(
        nn.Conv2d(3, 2 * width, 4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(2 * width, 4 * width, 4),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(4 * width, 4 * width, 1),
        nn.ReLU(),
        nn.Conv2d(4 * width, 4 * width, 3),
        nn.ReLU(),
        nn.Conv2d(4 * width, out, 4),
        nn.ReLU(),
        nn.Conv2d(out, out, 1),
    )


def pdn_side(size: int) -> int:
    """Positions a side that a PDN gives for images of `size` pixels: 56 for 256, 24 for 128."""
    return ((size - 3) // 2 - 3) // 2 - 5


class Autoencoder(nn.Module):
    """(B, 3, size, size) normalised -> (B, out, side, side), through a bottleneck of width / 2 numbers.

    The released network's last encoding convolution has an 8 x 8 kernel, which fits what five halvings leave of
    256 pixels and nothing smaller. Here the kernel is as large as what is left, and the decoder's sizes are
    the paper's fractions of the image; at 256 pixels and width 128 it is the paper's network.
    """

    def __init__(self, size: int, width: int, out: int):
        super().__init__()
        few, many = max(width // 4, 1), max(width // 2, 1)
        self.encode = nn.Sequential(
            nn.Conv2d(3, few, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(few, few, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(few, many, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(many, many, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(many, many, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(many, many, size // 32),
        )
        # 3, 8, 15, 32, 63, 127 at 256 pixels.
        self.sizes = [
            max(size // 64 - 1, 1),
            size // 32,
            size // 16 - 1,
            size // 8,
            size // 4 - 1,
            size // 2 - 1,
        ]
        self.side = pdn_side(size)
        self.decode = nn.ModuleList(
            nn.Sequential(nn.Conv2d(many, many, 4, 1, 2), nn.ReLU(), nn.Dropout(0.2)) for _ in self.sizes
        )
        self.describe = nn.Sequential(
            nn.Conv2d(many, many, 3, 1, 1), nn.ReLU(), nn.Conv2d(many, out, 3, 1, 1)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        values = self.encode(pixels)
        for side, block in zip(self.sizes, self.decode):
            values = block(resized(values, side))
        return self.describe(resized(values, self.side))


def resized(maps: Tensor, side: int) -> Tensor:
    """Maps (B, C, h, w) -> (B, C, side, side), bilinear."""
    return functional.interpolate(maps, size=(side, side), mode="bilinear", align_corners=False)


def normalised(pixels: Tensor) -> Tensor:
    """Pixels (B, 3, H, W) in [0, 1] -> with ImageNet's mean and standard deviation taken out."""
    mean, std = (pixels.new_tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


def freeze(network: nn.Module) -> nn.Module:
    """The network without gradients, laid out as its device likes it."""
    device = next(network.parameters()).device
    return network.eval().requires_grad_(False).to(memory_format=memory_format(device))


def memory_format(device: torch.device) -> torch.memory_format:
    """Channels last on the CPU, where these convolutions then take two thirds of the time."""
    return torch.channels_last if device.type == "cpu" else torch.contiguous_format
