"""Nearest neighbours and farthest-first selection, exact, on float32 vectors."""

import numpy as np
import torch
from torch import Tensor

# Distances are brought up to date for this many candidates at a time, in so many parts; larger ones waste
# products, smaller ones start more of them.
BLOCK = 1536
PARTS = 4
# Distances are made in tables of this many queries (by this many of the bank): small ones stay in the cache.
CHUNK = 2048
QUERIES = 1024


def nearest(queries: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
    """Euclidean distance (Q,) float32 and index (Q,) int64 of each query's nearest neighbour in `bank`.

    `queries` (Q, D) and `bank` (M, D) float32. The neighbour is found by the expanded square; its
    distance is then taken from the difference itself, which loses nothing to cancellation.
    """
    centre = bank.mean(0)
    centred, norms = _centred(bank, centre)
    index = torch.cat([_nearest_index(part - centre, centred, norms) for part in queries.split(QUERIES)])
    return (queries - bank[index]).square().sum(1).sqrt(), index


def _nearest_index(queries: Tensor, bank: Tensor, norms: Tensor) -> Tensor:
    best = torch.full((len(queries),), torch.inf, device=queries.device)
    index = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    for start in range(0, len(bank), CHUNK):
        part = bank[start : start + CHUNK]
        # |q|^2 is the same for every neighbour of q, so it can't change which one is nearest.
        squares = torch.addmm(norms[start : start + CHUNK], queries, part.T, alpha=-2)
        value, place = squares.min(1)
        closer = value < best
        best = torch.where(closer, value, best)
        index = torch.where(closer, place + start, index)
    return index


def _centred(points: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Points about `centre`, and their squared lengths: an offset that all share would drown the distances."""
    centred = points - centre
    return centred, centred.square().sum(1)


def nearest_k(queries: Tensor, bank: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Squared distances (Q, k) and indices (Q, k) int64 of each query's k nearest in `bank`, nearest first.

    `queries` (Q, D) and `bank` (M, D) float32, k <= M; the table of Q x M distances is made in pieces. The
    squares are the expanded ones, exact to the last digits of the squared distance to the middle of the bank:
    enough to compare with something that is not tiny, else take the distances anew from the differences.
    """
    centre = bank.mean(0)
    centred, norms = _centred(bank, centre)
    pieces = []
    for part in queries.split(CHUNK):
        part, lengths = _centred(part, centre)
        values, index = torch.addmm(norms, part, centred.T, alpha=-2).topk(k, 1, largest=False)
        pieces.append((values.add_(lengths[:, None]).clamp_(min=0), index))
    squares, index = (torch.cat(each) for each in zip(*pieces))
    return squares, index


def farthest_first(points: Tensor, count: int, generator: torch.Generator, starts: int = 10) -> Tensor:
    """Indices (count,) int64 of a greedy k-centre coreset of `points` (N, D) float32.

    The first distance of a point is its mean distance to `starts` random points, which are not chosen
    themselves (the "approximate greedy" selection of PatchCore's released code); after that each pick is
    the point farthest from all picks.
    """
    chosen = torch.randperm(len(points), generator=generator)[:starts]
    starting = points[chosen.to(points.device)]
    first = torch.cdist(points, starting, compute_mode="donot_use_mm_for_euclid_dist").mean(1)
    return _greedy(points, torch.ones_like(first), first.square(), min(count, len(points)))


def weighted_farthest_first(points: Tensor, weights: Tensor, count: int) -> Tensor:
    """Indices (count,) int64 chosen greedily by weight times distance to the picks (InCLAD, C.1).

    `points` (N, D) float32, `weights` (N,) >= 0. The first pick, for which there is no distance yet, is
    the point of largest weight.
    """
    count = min(count, len(points))
    first = int(weights.argmax())
    bound = (points - points[first]).square().sum(1)
    bound[first] = -1
    # A weight of exactly zero would let a point that was picked (-1) tie with one that was not (0).
    rest = _greedy(points, weights.square().clamp_min(1e-30), bound, count - 1)
    return torch.cat([torch.tensor([first], device=points.device), rest])


def _greedy(points: Tensor, weights: Tensor, squares: Tensor, count: int) -> Tensor:
    """Picks of argmax weights * squares, where squares shrink to the squared distance to the nearest pick.

    A value only falls as picks are added, so an old one is an upper bound. A block of the points with
    the largest bounds is brought up to date at once; picks are then made inside it for as long as the
    best of them is not below the bound of everything outside.
    """
    squares = squares.clone()
    points, norms = _centred(points, points.mean(0))
    seen = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    picks = torch.empty(count, dtype=torch.int64, device=points.device)
    picked = torch.empty(count, points.shape[1], device=points.device)  # points[picks], gathered once
    done = 0
    size = min(BLOCK, len(points))
    while done < count:
        value, block = torch.topk(weights * squares, min(size + 1, len(points)))
        outside = value[size].item() if len(value) > size else -torch.inf
        block = block[:size]
        # In parts of about the same age, so that few meet picks that they have met before.
        block = block[seen[block].argsort()]
        for part in block.chunk(PARTS):
            missed = slice(int(seen[part[0]]), done)
            if missed.start < done:
                product = torch.addmm(norms[picks[missed]], points[part], picked[missed].T, alpha=-2)
                fresh = (product.amin(1) + norms[part]).clamp_(min=0)
                squares[part] = torch.minimum(squares[part], fresh)
        seen[block] = done
        # Of the block, only those count that are still not below what is outside (or not a number).
        block = block[~(weights[block] * squares[block] < outside)]
        # One pick is a few operations on a few numbers, which numpy starts faster than torch.
        inside = points[block].cpu().numpy()
        current, weight, lengths = (each[block].cpu().numpy() for each in (squares, weights, norms))
        chosen: list[int] = []
        while len(block) and done + len(chosen) < count:
            bounds = weight * current
            best = int(bounds.argmax())
            if bounds[best] < outside:
                break
            chosen.append(best)
            apart = inside @ (-2 * inside[best]) + (lengths + lengths[best])
            np.minimum(current, np.maximum(apart, 0), out=current)
            # A pick is never picked again, not even where many points coincide.
            current[best] = -1
        squares[block] = torch.from_numpy(current).to(squares.device)
        place = block[torch.tensor(chosen, dtype=torch.int64, device=points.device)]
        picks[done : done + len(chosen)] = place
        picked[done : done + len(chosen)] = points[place]
        done += len(chosen)
        seen[block] = done
    return picks
