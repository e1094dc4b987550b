"""STFPM: a student learns to give the features that a frozen teacher gives for normal images.

Wang et al., Student-teacher feature pyramid matching for anomaly detection, BMVC 2021. Teacher and student are
one architecture, the student with random weights. Where the student fails to follow, the image is unlike those
it was trained on. Difference from the paper, as in its authors' code: the distance has no factor 1/2
(equation 1), which doubles the gradient and leaves the order of scores as it is. Differences from their code:
all normal images are trained on and the last epoch is kept, where they hold out a fifth to choose one; the
maps are multiplied at image size, as in the paper, not at 64 x 64.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from inclad.backbones import Backbone
from inclad.detectors.detector import Detector, at_least_one, image_scores
from inclad.detectors.training import pack, seeded, train_detector, unpack, update
from inclad.features import Batch, Extractor, Images
from inclad.maps import to_image_size


class STFPM(Detector):
    """A student of the whole network, compared with its teacher at three stages.

    `learning_rate` is high because features of length one give small gradients; on some images it diverges.
    """

    stages = (1, 2, 3)

    def __init__(
        self,
        *,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 0.4,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        seed: int = 0,
        mixed_precision: bool = False,
    ):
        at_least_one("stfpm", batch_size=batch_size)
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.mixed_precision = mixed_precision
        self.generator = torch.Generator().manual_seed(seed)
        self.teacher: Backbone | None = None
        self.student: nn.Sequential | None = None

    def fit(self, images: Images) -> None:
        self.start(images.extractor)
        optimizer = torch.optim.SGD(
            self.student.parameters(), self.learning_rate, self.momentum, weight_decay=self.weight_decay
        )

        def step(batch: Batch) -> Tensor:
            return update(loss(batch.features(self.stages), self.imitate(batch)), optimizer)

        self.student.train()
        train_detector("stfpm", self, images, step)
        self.student.eval()

    @torch.inference_mode()
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        maps = anomaly_maps(batch.features(self.stages), self.imitate(batch), batch.size)
        return maps, image_scores(maps)

    def start(self, extractor: Extractor) -> None:
        """Make the student, once."""
        if self.student is None:
            self.teacher = extractor.backbone
            with seeded(self.generator):
                self.student = self.teacher.untrained(self.stages[-1]).eval()

    def imitate(self, batch: Batch) -> list[Tensor]:
        """The student's feature maps (B, C_s, H_s, W_s), one a stage."""
        _, *stages = pass_on(self.student, self.teacher.normalise(batch.pixels()))
        return stages

    def state(self) -> dict[str, Tensor]:
        return pack(student=self.student)

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.start(extractor)
        unpack(state, student=self.student)


def pass_on(pieces: nn.Sequential, values: Tensor) -> list[Tensor]:
    """What each piece gives, fed what the one before it gave; the first takes `values`."""
    results = []
    for piece in pieces:
        values = piece(values)
        results.append(values)
    return results


def squared_distances(teacher: Tensor, student: Tensor) -> Tensor:
    """Squared distance (B, H, W) float32, 0 to 4, at each position of (B, C, H, W) maps, both brought to
    length one over the channels (equation 1, without its 1/2)."""
    difference = functional.normalize(teacher.float(), dim=1) - functional.normalize(student.float(), dim=1)
    return difference.square().sum(1)


def loss(teacher: list[Tensor], student: list[Tensor]) -> Tensor:
    """Mean squared distance over images and positions, summed over the stages (equations 1 to 3)."""
    return sum(squared_distances(t, s).mean() for t, s in zip(teacher, student))


def anomaly_maps(teacher: list[Tensor], student: list[Tensor], size: int) -> Tensor:
    """Product (B, size, size) over the stages of squared distances, each up-sampled first (equation 4)."""
    maps = [to_image_size(squared_distances(t, s), size, sigma=0) for t, s in zip(teacher, student)]
    return torch.stack(maps).prod(0)
