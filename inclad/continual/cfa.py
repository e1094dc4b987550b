"""Continual CFA: one descriptor trained with replay, a bank per task rebuilt after each (InCLAD, C.3).

The paper keeps all past images to rebuild the banks. A bank is the mean embedding at each location and the
descriptor is linear, so the bank of a task is the descriptor applied to the task's mean features: keeping
that one map a task gives the same banks and no image is needed.
"""

from torch import Tensor

from inclad.continual.learner import Learner, best_memory, numbered
from inclad.continual.replay import ReplayBuffer
from inclad.detectors.cfa import CFA, features, mean_features
from inclad.detectors.detector import maps_and_scores
from inclad.features import Batch, Extractor, Images


class ContinualCFA(Learner):
    """One descriptor, and the mean feature map of every task; options as for the detector CFA.

    `buffer_ratio` sets the replay budget relative to the mean size of a task's training set.
    """

    stages = CFA.stages

    def __init__(
        self,
        detector: CFA,
        *,
        buffer_ratio: float = 0.2,
        buffer_capacity: int = 0,
        buffer_selection: str = "random",
        seed: int = 0,
    ):
        self.detector = detector
        self.buffer = ReplayBuffer(buffer_ratio, seed, buffer_capacity, buffer_selection)
        self.centres: list[Tensor] = []
        self.banks: list[Tensor] = []

    def learn(self, images: Images) -> None:
        replayed = self.buffer.with_replay(images)
        centre = mean_features(replayed)
        self.detector.start(centre)
        # The training bank is that of the descriptor before its update, over current and replayed images.
        self.detector.train(replayed, self.detector.describe(centre))
        self.centres.append(mean_features(images))
        self.banks = [self.detector.describe(centre) for centre in self.centres]
        self.buffer.take(images)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        values = features(batch)
        sigma = self.detector.sigma
        distances = [self.detector.distances(values, bank) for bank in self.banks]
        best = best_memory(distances, [maps_and_scores(d, batch.size, sigma)[1] for d in distances])
        return maps_and_scores(best, batch.size, sigma)

    def state(self) -> dict[str, Tensor]:
        descriptor = {key: value for key, value in self.detector.state().items() if key != "bank"}
        centres = {f"centre.{task}": centre for task, centre in enumerate(self.centres)}
        banks = {f"bank.{task}": bank for task, bank in enumerate(self.banks)}
        return descriptor | centres | banks | self.buffer.state()

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        learned = self.buffer.load(state)
        self.centres, self.banks = numbered(learned, "centre"), numbered(learned, "bank")
        self.detector.load(learned | {"bank": self.banks[-1]}, extractor)
