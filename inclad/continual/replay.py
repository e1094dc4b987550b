"""A balanced buffer of normal samples of earlier tasks."""

import torch

from inclad.data.task import Sample


class ReplayBuffer:
    """One budget of max(1, round(`ratio` x mean training size)) samples, shared evenly by the tasks seen.

    Quotas differ by at most one; what a small task can't fill goes to the others. A task's samples are put
    in a random order once, so a shrinking quota keeps a subset of what was kept before. Ratio 0 keeps
    nothing.
    """

    def __init__(self, ratio: float, seed: int = 0):
        if ratio < 0:
            raise ValueError(f"buffer_ratio: {ratio} is negative")
        self.ratio = ratio
        self._generator = torch.Generator().manual_seed(seed)
        self._sizes: list[int] = []
        self._kept: list[list[Sample]] = []

    def samples(self) -> list[Sample]:
        """All samples kept, in task order."""
        return [sample for kept in self._kept for sample in kept]

    def add(self, samples: tuple[Sample, ...]) -> None:
        """Take in a task's training samples and shrink the others to the new quotas."""
        if self.ratio == 0:
            return
        self._sizes.append(len(samples))
        order = torch.randperm(len(samples), generator=self._generator).tolist()
        self._kept.append([samples[i] for i in order])
        budget = max(1, round(self.ratio * sum(self._sizes) / len(self._sizes)))
        quotas = fair_quotas(budget, [len(kept) for kept in self._kept])
        self._kept = [kept[:quota] for kept, quota in zip(self._kept, quotas)]


def fair_quotas(budget: int, available: list[int]) -> list[int]:
    """Split `budget` over tasks: as even as `available` allows, earlier tasks first for what is left over."""
    quotas = [0] * len(available)
    left = min(budget, sum(available))
    while left:
        for task, quota in enumerate(quotas):
            if left and quota < available[task]:
                quotas[task] += 1
                left -= 1
    return quotas
