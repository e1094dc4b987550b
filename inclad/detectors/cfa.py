"""CFA: a trained descriptor pulls normal features towards a bank of centres, one a location.

Lee et al., CFA: coupled-hypersphere-based feature adaptation for target-oriented anomaly localization, IEEE
Access 2022. Equations 1 to 3 for the loss, 5 for the score. Differences from the released code: the bank is
the true mean of the training maps (theirs weights a short last batch more), short batches are trained on
too, and the last epoch is kept, never the best one on the test set.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from inclad.detectors.detector import Detector, at_least_one
from inclad.features import Batch, Extractor, Images, local_means
from inclad.neighbors import CHUNK, nearest_k


class CFA(Detector):
    """Descriptor and bank of centres.

    `neighbors` (K) centres attract an embedding to within the learned radius, the next `repulsion_neighbors`
    (J) are pushed out of radius^2 - `alpha`; `nu` weighs both. `sigma` smooths the map, in pixels.
    """

    stages = (1, 2, 3)

    def __init__(
        self,
        *,
        epochs: int = 50,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        weight_decay: float = 5e-4,
        neighbors: int = 3,
        repulsion_neighbors: int = 3,
        alpha: float = 0.1,
        nu: float = 1e-3,
        sigma: float = 4.0,
        seed: int = 0,
    ):
        at_least_one(
            "cfa", batch_size=batch_size, neighbors=neighbors, repulsion_neighbors=repulsion_neighbors
        )
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.neighbors = neighbors
        self.repulsion_neighbors = repulsion_neighbors
        self.alpha = alpha
        self.nu = nu
        self.sigma = sigma
        self.generator = torch.Generator().manual_seed(seed)
        self.descriptor: nn.Linear | None = None
        self.bank = torch.empty(0, 0)

    def fit(self, images: Images) -> None:
        centre = mean_features(images)
        self.start(centre)
        # The bank is fixed before training: the descriptor moves towards it, it does not move along.
        self.bank = self.describe(centre)
        self.train(images, self.bank)

    def distances(self, batch: Batch) -> Tensor:
        return self.to_bank(self.describe(features(batch)), self.bank)

    def start(self, centre: Tensor) -> None:
        """Make the descriptor, once: a 1 x 1 convolution over channels and the two coordinates."""
        if self.descriptor is None:
            width = centre.shape[1]
            bound = width**-0.5
            self.descriptor = nn.Linear(width, width - 2).to(centre.device)
            for parameter in self.descriptor.parameters():
                drawn = torch.rand(parameter.shape, generator=self.generator) * 2 - 1
                parameter.data.copy_(drawn * bound)

    @torch.no_grad()
    def describe(self, values: Tensor) -> Tensor:
        """Embeddings (..., D) of features (..., D + 2). Linear: a mean of features gives the mean embedding."""
        return self.descriptor(values)

    def train(self, images: Images, bank: Tensor) -> None:
        """Train the descriptor against `bank` (M, D); radius and optimiser start anew each task.

        Raises FloatingPointError when the loss stops being finite, ValueError for more neighbours than centres.
        """
        if self.neighbors + self.repulsion_neighbors > len(bank):
            raise ValueError(
                f"cfa: neighbors + repulsion_neighbors: {self.neighbors + self.repulsion_neighbors} is more than "
                f"the {len(bank)} centres at this image size"
            )
        radius = nn.Parameter(torch.tensor(1e-5, device=bank.device))
        optimizer = torch.optim.AdamW(
            [*self.descriptor.parameters(), radius],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            amsgrad=True,
        )
        for epoch in range(self.epochs):
            for batch in images.shuffled(self.generator, self.batch_size):
                embeddings = self.descriptor(features(batch)).flatten(0, 1)
                value = loss(
                    embeddings, bank, radius, self.neighbors, self.repulsion_neighbors, self.alpha, self.nu
                )
                if not torch.isfinite(value):
                    raise FloatingPointError(
                        f"cfa: the loss is not finite in epoch {epoch + 1}; lower learning_rate "
                        f"(now {self.learning_rate})"
                    )
                optimizer.zero_grad()
                value.backward()
                optimizer.step()

    def to_bank(self, embeddings: Tensor, bank: Tensor) -> Tensor:
        """Distance (B, P) of each position's embedding (B, P, D) to the nearest centre of `bank` (M, D), times its
        share in the soft minimum of the K nearest (equation 5)."""
        # In pieces: all embeddings of a batch against all centres would be a table of gigabytes.
        pieces = embeddings.flatten(0, 1).split(CHUNK)
        return torch.cat([soft_minimum(part, bank, self.neighbors) for part in pieces]).view(
            embeddings.shape[:2]
        )

    def state(self) -> dict[str, Tensor]:
        learned = {f"descriptor.{key}": value for key, value in self.descriptor.state_dict().items()}
        return learned | {"bank": self.bank}

    def load(self, state: dict[str, Tensor], extractor: Extractor) -> None:
        self.bank = state["bank"]
        weight = state["descriptor.weight"]
        self.descriptor = nn.Linear(weight.shape[1], weight.shape[0]).to(weight.device)
        self.descriptor.load_state_dict({key: state[f"descriptor.{key}"] for key in ("weight", "bias")})


def features(batch: Batch) -> Tensor:
    """Input of the descriptor, (B, P, C + 2) float32: all stages averaged over 3 x 3 neighbours and brought
    to the finest grid, then the row and column of the position in [-1, 1]."""
    stages = [local_means(maps) for maps in batch.features(CFA.stages)]
    size = stages[0].shape[-2:]
    stages[1:] = [
        functional.interpolate(s, size=size, mode="bilinear", align_corners=False) for s in stages[1:]
    ]
    rows, columns = (torch.linspace(-1, 1, length, device=stages[0].device) for length in size)
    coordinates = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), 2).expand(
        len(stages[0]), -1, -1, -1
    )
    return torch.cat([*(maps.permute(0, 2, 3, 1) for maps in stages), coordinates], 3).flatten(1, 2)


def mean_features(images: Images) -> Tensor:
    """Mean (P, C + 2) float32 of the descriptor's input over the images."""
    total = sum(features(batch).sum(0).cpu().double() for batch in images)
    return (total / len(images)).float().to(images.extractor.device)


def loss(
    embeddings: Tensor, bank: Tensor, radius: Tensor, neighbors: int, repulsion: int, alpha: float, nu: float
) -> Tensor:
    """Coupled-hypersphere loss of `embeddings` (N, D) against `bank` (M, D): equations 1 to 3.

    Squared distances to the K nearest centres beyond radius^2, and those to the next J within
    radius^2 - alpha. Gradients only flow through the distances, not through the choice of neighbours.
    """
    squares = NearestSquares.apply(embeddings, bank, neighbors + repulsion)
    attract = (squares[:, :neighbors] - radius**2).relu().mean()
    repel = (radius**2 - squares[:, neighbors:] - alpha).relu().mean()
    return (attract + repel) / nu


class NearestSquares(torch.autograd.Function):
    """Squared distances (N, k) of `embeddings` (N, D) to their k nearest in `bank` (M, D), with a cheap gradient.

    Left to autograd, k differences as large as the embeddings would be made, kept and gone through again; all
    that the gradient needs of the centres is one weighted sum of k of them.
    """

    @staticmethod
    def forward(context, embeddings: Tensor, bank: Tensor, k: int) -> Tensor:
        squares, index = nearest_k(embeddings, bank, k)
        context.save_for_backward(embeddings, bank, index)
        return squares

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None, None]:
        embeddings, bank, index = context.saved_tensors
        centres = functional.embedding_bag(index, bank, mode="sum", per_sample_weights=gradient.contiguous())
        return 2 * (embeddings * gradient.sum(1, keepdim=True) - centres), None, None


def soft_minimum(embeddings: Tensor, bank: Tensor, neighbors: int) -> Tensor:
    """Distance (P,) to the nearest centre times softmin of the K nearest distances, for (P, D) embeddings."""
    _, index = nearest_k(embeddings, bank, neighbors)
    distances = torch.stack([(embeddings - bank[column]).norm(dim=1) for column in index.T], 1)
    return functional.softmin(distances, 1)[:, 0] * distances[:, 0]
