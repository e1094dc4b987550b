"""PaSTe: the student of STFPM without its first layers, which it shares with the teacher.

Barusco et al., PaSTe: improving the efficiency of visual anomaly detection at the edge, 2024 (arXiv
2410.11591). The teacher's activation after the shared part is the student's input; loss and map are STFPM's.
Difference from the released code: all stages are normalised in the loss, where theirs compares the first
without.
"""

import torch
from torch import Tensor, nn

from inclad.backbones import Backbone
from inclad.detectors.detector import Detector, at_least_one, image_scores
from inclad.detectors.stfpm import anomaly_maps, loss, pass_on
from inclad.detectors.training import pack, seeded, train_detector, unpack, update
from inclad.features import Batch, Extractor, Images


class PaSTe(Detector):
    """A student of the stages after `bootstrap_layer`, which are those compared; 0 shares the stem alone.

    Shared stages would add a distance of zero, and with it a map of zeros, so they are left out.
    """

    stages = (1, 2, 3)

    def __init__(
        self,
        *,
        bootstrap_layer: int = 0,
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 0.4,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        seed: int = 0,
        mixed_precision: bool = False,
    ):
        at_least_one("paste", batch_size=batch_size)
        if bootstrap_layer not in (0, 1, 2):
            raise ValueError(f"paste: bootstrap_layer: {bootstrap_layer} must be 0, 1 or 2")
        self.bootstrap_layer = bootstrap_layer
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.mixed_precision = mixed_precision
        self.compared = tuple(stage for stage in self.stages if stage > bootstrap_layer)
        self.generator = torch.Generator().manual_seed(seed)
        self.teacher: Backbone | None = None
        self.student: nn.Sequential | None = None

    def fit(self, images: Images) -> None:
        self.start(images.extractor)
        optimizer = torch.optim.SGD(
            self.student.parameters(), self.learning_rate, self.momentum, weight_decay=self.weight_decay
        )

        def step(batch: Batch) -> Tensor:
            return update(loss(batch.features(self.compared), self.imitate(batch)), optimizer)

        self.student.train()
        train_detector("paste", self, images, step)
        self.student.eval()

    @torch.inference_mode()
    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        maps = anomaly_maps(batch.features(self.compared), self.imitate(batch), batch.size)
        return maps, image_scores(maps)

    def start(self, extractor: Extractor) -> None:
        """Make the student, once."""
        if self.student is None:
            self.teacher = extractor.backbone
            with seeded(self.generator):
                whole = self.teacher.untrained(self.stages[-1])
                self.student = whole[self.bootstrap_layer + 1 :].eval()

    def shared(self, batch: Batch) -> Tensor:
        """The teacher's activation (B, C, H, W) that the student takes.

        That of the stem is larger than the image, so it is computed anew; the others are at hand.
        """
        if self.bootstrap_layer == 0:
            return self.teacher.stem(batch.pixels())
        return batch.features((self.bootstrap_layer,))[0].contiguous(memory_format=self.teacher.memory_format)

    def imitate(self, batch: Batch) -> list[Tensor]:
        """The student's feature maps (B, C_s, H_s, W_s), one a stage compared."""
        return pass_on(self.student, self.shared(batch))

    def state(self) -> dict[str, Tensor]:
        return pack(student=self.student)

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.start(extractor)
        unpack(state, student=self.student)
