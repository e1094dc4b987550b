"""Continual PaDiM: the Gaussians of every task, kept for ever (InCLAD, appendix C.2)."""

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
    batch of images (its distances, a coarse map an image), and only later Gaussians are tried on it again.
    """

    stages = PaDiM.stages

    def __init__(self, detector: PaDiM):
        self.detector = detector
        self.gaussians: list[tuple[Tensor, Tensor]] = []
        self._best: dict[tuple[Sample, ...], tuple[int, Tensor, Tensor]] = {}

    def learn(self, images: Images) -> None:
        fit_once(self.detector, images)
        self.gaussians.append((self.detector.mean, self.detector.whitening))

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tried, distances, scores = self._best.get(batch.samples, (0, None, None))
        sigma = self.detector.sigma
        if tried < len(self.gaussians):
            embeddings = embed(batch, self.detector.channels, self.detector.channel_seed)
            for mean, whitening in self.gaussians[tried:]:
                new = mahalanobis(embeddings, mean, whitening)
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

    def state(self) -> dict[str, Tensor]:
        means = {f"mean.{task}": mean for task, (mean, _) in enumerate(self.gaussians)}
        return means | {f"whitening.{task}": matrix for task, (_, matrix) in enumerate(self.gaussians)}

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.gaussians = list(zip(numbered(state, "mean"), numbered(state, "whitening")))
        self._best = {}
