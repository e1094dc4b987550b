"""Continual PatchCore: a bank per task, the older ones thinned to a common budget (InCLAD, appendix C.1)."""

from functools import partial

from torch import Tensor

from inclad.continual.learner import Learner, best_memory, fit_once, numbered
from inclad.detectors.detector import maps_and_scores
from inclad.detectors.patchcore import PatchCore, embed, patch_distances
from inclad.features import Batch, Extractor, Images
from inclad.neighbors import nearest, weighted_farthest_first


class ContinualPatchCore(Learner):
    """Task banks C_1 .. C_t.

    The newest bank is a full coreset. Together the older ones hold floor(`history_ratio` x |C_t|) patches,
    each an equal share and at least one; patches far from the newest bank are kept first. A bank is never
    larger again than it once became. Weights w_t and distances between patches are taken in the full
    embedding, which the paper leaves open.
    """

    stages = PatchCore.stages

    def __init__(self, detector: PatchCore, *, history_ratio: float = 0.25):
        if history_ratio < 0:
            raise ValueError(f"patchcore: history_ratio: {history_ratio} is negative")
        self.detector = detector
        self.history_ratio = history_ratio
        self.banks: list[Tensor] = []
        self._newest_key = ""

    def learn(self, images: Images) -> None:
        self._newest_key = fit_once(self.detector, images)
        newest = self.detector.bank
        if self.banks:
            share = max(1, int(self.history_ratio * len(newest)) // len(self.banks))
            self.banks = [thin(bank, newest, share) for bank in self.banks]
        self.banks.append(newest)

    def score(self, batch: Batch) -> tuple[Tensor, Tensor]:
        *history, newest = self.banks
        embeddings = embed(batch)
        distances = [patch_distances(embeddings, bank) for bank in history]
        # The newest bank is whole: the naive learner has it too, and other orders will.
        distances.append(batch.once(self._newest_key, partial(patch_distances, embeddings, newest)))
        best = best_memory(distances, [d.mean(1) for d in distances])
        return maps_and_scores(best, batch.size, self.detector.sigma)

    def state(self) -> dict[str, Tensor]:
        return {f"bank.{task}": bank for task, bank in enumerate(self.banks)}

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.banks = numbered(state, "bank")
        self._newest_key = ""


def thin(bank: Tensor, newest: Tensor, count: int) -> Tensor:
    """`count` rows of `bank` (M, D), chosen by distance to `newest` times distance to what is chosen."""
    if len(bank) <= count:
        return bank
    weights, _ = nearest(bank, newest)
    return bank[weighted_farthest_first(bank, weights, count)]
