"""Continual CFA: one descriptor trained with replay, a bank per task rebuilt after each (InCLAD, C.3).

The paper keeps all past images to rebuild the banks. A bank is the mean embedding at each location and the
descriptor is linear, so the bank of a task is the descriptor applied to the task's mean features: keeping
that one map a task gives the same banks and no image is needed.
"""

import torch
from torch import Tensor

from inclad.continual.learner import Learner, numbered
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
        embeddings = self.detector.describe(features(batch))
        bounds = self._bounds(embeddings, batch.size)
        rows = torch.arange(len(batch), device=embeddings.device)
        best = torch.full(embeddings.shape[:2], torch.nan, device=embeddings.device)
        scores = torch.full_like(best[:, 0], torch.inf)
        winners = torch.full_like(rows, len(self.banks))
        # Each image tries its most promising bank first, and no bank that can't be its best.
        for candidates in bounds.argsort(0):
            hopeful = ~(bounds[candidates, rows] > scores)
            for bank in candidates[hopeful].unique():
                tried = rows[hopeful & (candidates == bank)]
                distances = self.detector.to_bank(embeddings[tried], self.banks[bank])
                _, new = maps_and_scores(distances, batch.size, self.detector.sigma)
                # The earliest bank wins a tie; what is not a number must not go unseen.
                tie = (new == scores[tried]) & (bank < winners[tried])
                better = (new < scores[tried]) | tie | new.isnan()
                won = tried[better]
                best[won], scores[won], winners[won] = distances[better], new[better], bank
        return maps_and_scores(best, batch.size, self.detector.sigma)

    def _bounds(self, embeddings: Tensor, size: int) -> Tensor:
        """Lower bounds (T, B) of the image scores by each bank, from a window in the middle of the image.

        Distances are not negative and smoothing only adds them up, so the score of the window alone, with
        nothing around it, can't be above that of the whole image.
        """
        side = int(embeddings.shape[1] ** 0.5)
        low, high = 5 * side // 12, side - 5 * side // 12
        inside = (
            torch.arange(side * side, device=embeddings.device).view(side, side)[low:high, low:high].flatten()
        )
        bounds = []
        for bank in self.banks:
            partial = torch.zeros(embeddings.shape[:2], device=embeddings.device)
            partial[:, inside] = self.detector.to_bank(embeddings[:, inside], bank)
            bounds.append(maps_and_scores(partial, size, self.detector.sigma)[1])
        # A little less, for the last digits of sums.
        return torch.stack(bounds) * (1 - 1e-5)

    def state(self) -> dict[str, Tensor]:
        descriptor = {key: value for key, value in self.detector.state().items() if key != "bank"}
        centres = {f"centre.{task}": centre for task, centre in enumerate(self.centres)}
        banks = {f"bank.{task}": bank for task, bank in enumerate(self.banks)}
        return descriptor | centres | banks | self.buffer.state()

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        learned = self.buffer.load(state)
        self.centres, self.banks = numbered(learned, "centre"), numbered(learned, "bank")
        self.detector.load(learned | {"bank": self.banks[-1]}, extractor)
