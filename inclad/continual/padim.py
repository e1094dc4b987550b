"""Continual PaDiM: the Gaussians of every task, kept for ever (InCLAD, appendix C.2)."""

from torch import Tensor

from inclad.continual.learner import Learner, best_memory, maps_and_scores
from inclad.detectors.padim import PaDiM, embed, mahalanobis
from inclad.features import Batch, Images


class ContinualPaDiM(Learner):
    """Gaussians G_1 .. G_t, one a location and task; the lowest image score wins."""

    stages = PaDiM.stages

    def __init__(
        self,
        *,
        channels: int = 100,
        regularization: float = 0.01,
        sigma: float = 4.0,
        channel_seed: int = 1024,
    ):
        self.detector = PaDiM(
            channels=channels, regularization=regularization, sigma=sigma, channel_seed=channel_seed
        )
        self.gaussians: list[tuple[Tensor, Tensor]] = []

    def learn(self, images: Images) -> None:
        self.detector.fit(images)
        self.gaussians.append((self.detector.mean, self.detector.whitening))

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        embeddings = embed(batch, self.detector.channels, self.detector.channel_seed)
        distances = [mahalanobis(embeddings, mean, whitening) for mean, whitening in self.gaussians]
        sigma = self.detector.sigma
        best = best_memory(distances, [maps_and_scores(d, batch.size, sigma)[1] for d in distances])
        return maps_and_scores(best, batch.size, sigma)

    def state(self) -> dict[str, Tensor]:
        means = {f"mean.{task}": mean for task, (mean, _) in enumerate(self.gaussians)}
        return means | {f"whitening.{task}": matrix for task, (_, matrix) in enumerate(self.gaussians)}
