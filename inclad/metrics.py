"""ROC-AUC, exact and fast, and the figures of continual learning that are made from a matrix R of them.

R is N x N: R[i, j] is the ROC-AUC on task j's test set after learning task i (InCLAD, section 3). Only the
lower triangle with the diagonal is read; NaN marks a missing cell. A missing cell drops just the terms that
need it, and a figure without any term left is NaN.
"""

import numpy as np
from numpy.typing import ArrayLike

_CHUNK = 1 << 17  # items taken at once: what is made of them stays in the cache and needs no memory
_MANY = 1 << 17  # from here on a histogram before the sorting pays


def roc_auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Probability that an anomalous item scores above a normal one, ties counting one half; exact, 0 to 1.

    `labels` (n,) bool or 0/1, 1 = anomalous; `scores` (n,), higher = more anomalous. Float scores keep their
    dtype (float32 pixels are not widened); memory beyond the input is about 6 bytes a float32 pixel. NaN when
    one class is absent. Raises ValueError for unequal shapes, other labels, and scores that are not finite.
    """
    labels, scores = np.asarray(labels).ravel(), np.asarray(scores).ravel()
    if labels.shape != scores.shape:
        raise ValueError(f"roc_auc needs as many labels as scores, got {labels.size} and {scores.size}")
    if scores.size == 0:
        return float("nan")
    if scores.dtype.kind != "f":
        scores = scores.astype(np.float64)
    # The minimum and the maximum of an array with a NaN are NaN: two passes without a temporary array.
    if not (np.isfinite(scores.min()) and np.isfinite(scores.max())):
        count = int(scores.size - np.isfinite(scores).sum())
        raise ValueError(f"roc_auc got {count} of {scores.size} scores that are NaN or infinite")
    if labels.dtype != bool:
        anomalous = labels == 1
        if not np.all(anomalous | (labels == 0)):
            raise ValueError("roc_auc labels must be 0 (normal) or 1 (anomalous)")
        labels = anomalous
    positives, negatives = _where(labels, scores), _where(~labels, scores)
    pairs = positives.size * negatives.size
    if pairs == 0:
        return float("nan")
    if positives.size <= negatives.size:
        return _twice_wins(positives, negatives) / (2 * pairs)
    return (2 * pairs - _twice_wins(negatives, positives)) / (2 * pairs)


def _where(chosen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values[chosen]`, several times faster on large arrays: positions are found before values move."""
    found = np.empty(int(np.count_nonzero(chosen)), dtype=values.dtype)
    end = 0
    for start in range(0, values.size, _CHUNK):
        some = values[start : start + _CHUNK][np.flatnonzero(chosen[start : start + _CHUNK])]
        found[end : end + some.size] = some
        end += some.size
    return found


def _twice_wins(few: np.ndarray, many: np.ndarray) -> int:
    """Twice the number of pairs in which the item of `few` is larger, a tie counting one; reorders both.

    2 x wins = sum over `few` of (items of `many` below) + (items of `many` below or equal), in whole numbers.
    """
    few.sort()  # neighbouring look-ups then touch neighbouring memory
    total, undecided = _settle(few, many)
    undecided.sort()
    for start in range(0, few.size, _CHUNK):
        chunk = few[start : start + _CHUNK]
        for side in ("left", "right"):
            total += int(np.searchsorted(undecided, chunk, side=side).sum(dtype=np.int64))
    return total


def _settle(few: np.ndarray, many: np.ndarray) -> tuple[int, np.ndarray]:
    """Count without sorting what a histogram can decide: twice the wins over it, and what is left of `many`.

    The bins follow the order of the values, so an item of `many` whose bin holds none of `few` is decided.
    With few defective pixels that is most of them, and it is the sorting that takes the time.
    """
    low = min(few[0], many.min())
    span = float(max(few[-1], many.max())) - float(low)
    worth = _MANY <= many.size < 2**31 and few.size <= many.size // 5
    if not worth or few.itemsize < 4 or not 1e-30 < span < 1e30:  # outside, the bins would overflow
        return 0, many
    count = 1 << min(many.size.bit_length() - 2, 24)
    scale = few.dtype.type((count - 2) / span)

    def bins(values: np.ndarray) -> np.ndarray:
        return ((values - low) * scale).astype(np.intp)

    mixed = np.zeros(count, dtype=bool)
    for start in range(0, few.size, _CHUNK):
        mixed[bins(few[start : start + _CHUNK])] = True
    below = np.zeros(count, dtype=np.int32)
    ones = np.ones(_CHUNK, dtype=np.int32)
    left = 0
    for start in range(0, many.size, _CHUNK):
        chunk = many[start : start + _CHUNK]
        index = bins(chunk)
        np.add.at(below, index, ones[: chunk.size])  # many times faster with an array than with the scalar 1
        undecided = chunk[np.flatnonzero(mixed[index])]
        many[left : left + undecided.size] = undecided
        left += undecided.size
    below[mixed] = 0
    np.cumsum(below, dtype=np.int32, out=below)
    total = sum(int(below[bins(few[i : i + _CHUNK])].sum(dtype=np.int64)) for i in range(0, few.size, _CHUNK))
    return 2 * total, many[:left]


def pixel_roc_auc(masks: np.ndarray, maps: np.ndarray) -> float:
    """ROC-AUC over all pixels of all images together; `masks` bool (B, H, W), `maps` float32 (B, H, W).

    Higher map values = more anomalous. NaN when no pixel, or every pixel, is defective. Raises ValueError for
    unequal shapes and for maps that are not finite.
    """
    masks, maps = np.asarray(masks), np.asarray(maps)
    if masks.shape != maps.shape:
        raise ValueError(f"masks {masks.shape} and maps {maps.shape} must have one shape (B, H, W)")
    return roc_auc(masks, maps)


def valid_cells(R: ArrayLike) -> int:
    """Number of cells of the lower triangle, with the diagonal, that are not missing."""
    return int(np.isfinite(_lower(R)).sum())


def roc_auc_cl(R: ArrayLike) -> float:
    """Mean of the lower triangle with the diagonal (InCLAD, Eq. 1); 0 to 1, higher is better.

    A missing cell is left out of the mean.
    """
    return _mean(_lower(R))


def bwt(R: ArrayLike) -> float:
    """Backward transfer: mean over i > j of R[i, j] - R[j, j] (InCLAD, Eq. 2); negative = forgetting.

    A missing R[i, j] drops its term, a missing R[j, j] the terms of its column. NaN for a single task.
    """
    R = _lower(R)
    return _mean((R - np.diag(R))[np.tril_indices(len(R), -1)])


def bwt_stepwise(R: ArrayLike) -> float:
    """Step-wise backward transfer: mean over i > j of R[i, j] - R[i-1, j]; "BWT" in Table 2 of InCLAD.

    It equals 2/N times `bwt_final` for a complete matrix, so streams of unequal length cannot be compared by
    it. A missing cell drops the two terms it takes part in. NaN for a single task.
    """
    R = _lower(R)
    return _mean(np.diff(R, axis=0)[np.tril_indices(len(R) - 1)]) if len(R) > 1 else float("nan")


def bwt_final(R: ArrayLike) -> float:
    """Final backward transfer: mean over j < N of R[N, j] - R[j, j]; -1 to 1, negative = forgetting.

    A missing R[N, j] or R[j, j] drops the term of task j. NaN for a single task.
    """
    R = _lower(R)
    return _mean((R[-1:] - np.diag(R))[:, :-1])


def final_average(R: ArrayLike) -> float:
    """Mean of the last row: how well all tasks are solved at the end; 0 to 1, higher is better.

    A missing cell is left out of the mean.
    """
    return _mean(_lower(R)[-1:])


def diagonal_mean(R: ArrayLike) -> float:
    """Mean of the diagonal: how well each task is solved right after learning it; 0 to 1, higher is better.

    A missing cell is left out of the mean.
    """
    return _mean(np.diag(_lower(R)))


def forgetting(R: ArrayLike) -> float:
    """Mean over j < N of (best R[i, j] with i < N) - R[N, j]; -1 to 1, positive = forgotten.

    The best is taken over the cells there are; a missing R[N, j], or a column without an earlier cell, drops
    the term of task j. NaN for a single task.
    """
    R = _lower(R)
    if len(R) < 2:
        return float("nan")
    best = np.nan_to_num(R[:-1, :-1], nan=-np.inf).max(axis=0)
    best[best == -np.inf] = np.nan
    return _mean(best - R[-1, :-1])


def forward_transfer(R: ArrayLike) -> float:
    """Mean of R[i, j] over i < j: how well a task is solved before it was learned; 0 to 1, 0.5 = by chance.

    As in Diaz-Rodriguez et al., Don't forget, there is more than forgetting, 2018. A missing cell is left
    out; NaN when the upper triangle was not measured, and for a single task.
    """
    _lower(R)  # the same checks
    R = _lower(np.transpose(R))
    return _mean(R[np.tril_indices(len(R), -1)])


def _lower(R: ArrayLike) -> np.ndarray:
    """`R` as float64 with NaN above the diagonal; ValueError in one line when it is no matrix of ROC-AUC."""
    try:
        R = np.array(R, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("R must be an N x N array of numbers, NaN where a cell is missing") from None
    if R.ndim != 2 or R.shape[0] != R.shape[1]:
        raise ValueError(f"R must be square (N x N), got shape {R.shape}")
    R[np.triu_indices(len(R), 1)] = np.nan
    outside = R[(R < 0) | (R > 1)]
    if outside.size:
        raise ValueError(f"R must hold ROC-AUC between 0 and 1, got {outside[0]:g}")
    return R


def _mean(terms: np.ndarray) -> float:
    """Mean of the finite terms; NaN, without a warning, when there is none."""
    terms = terms[np.isfinite(terms)]
    return float(terms.mean()) if terms.size else float("nan")
