"""Continual PaDiM: the Gaussians of every task, kept for ever (InCLAD, appendix C.2)."""

from functools import partial

import torch
from torch import Tensor

from inclad.continual.learner import Learner, fit_once, numbered
from inclad.data.task import Sample
from inclad.detectors.detector import maps_and_scores
from inclad.detectors.padim import PaDiM, embed, mahalanobis
from inclad.features import Batch, Extractor, Images


class ContinualPaDiM(Learner):
    """Gaussians G_1 .. G_t, one a location and task; the lowest image score wins.

    A Gaussian never changes, so an image and a Gaussian meet once: what won so far is remembered for each
    batch of images (its distances, a coarse map an image), and only later Gaussians are tried on it again. With
    a cache, streams in another order take over all distances from the first.
    """

    stages = PaDiM.stages

    def __init__(self, detector: PaDiM):
        self.detector = detector
        self.gaussians: list[tuple[Tensor, Tensor]] = []
        self.keys: list[str] = []
        self._best: dict[tuple[Sample, ...], tuple[int, Tensor, Tensor]] = {}

    def learn(self, images: Images) -> None:
        self.keys.append(fit_once(self.detector, images))
        self.gaussians.append((self.detector.mean, self.detector.whitening))

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tried, distances, scores = self._best.get(batch.samples, (0, None, None))
        sigma = self.detector.sigma
        if tried < len(self.gaussians):
            for gaussian, key in list(zip(self.gaussians, self.keys))[tried:]:
                new = batch.once(key, partial(self._distances, batch, gaussian))
                _, new_scores = maps_and_scores(new, batch.size, sigma)
                if scores is None:
                    distances, scores = new, new_scores
                else:
                    # The earliest Gaussian keeps a tie; what is not a number must not go unseen.
                    lower = (new_scores < scores) | new_scores.isnan()
                    distances = torch.where(lower[:, None], new, distances)
                    scores = torch.where(lower, new_scores, scores)
            self._best[batch.samples] = (len(self.gaussians), distances, scores)
        return maps_and_scores(distances, batch.size, sigma)

    def _distances(self, batch: Batch, gaussian: tuple[Tensor, Tensor]) -> Tensor:
        return mahalanobis(embed(batch, self.detector.channels, self.detector.channel_seed), *gaussian)

    def state(self) -> dict[str, Tensor]:
        means = {f"mean.{task}": mean for task, (mean, _) in enumerate(self.gaussians)}
        return means | {f"whitening.{task}": matrix for task, (_, matrix) in enumerate(self.gaussians)}

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.gaussians = list(zip(numbered(state, "mean"), numbered(state, "whitening")))
        self.keys = [""] * len(self.gaussians)
        self._best = {}
