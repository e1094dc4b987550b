"""params/paper/: the paper's setting of each of the nine, held against its Tables 6 and 7."""

from pathlib import Path

import pytest
import torch

from inclad.continual.catalog import PROTOCOLS, check_learners, check_size, make_learner
from inclad.detectors import cfa
from inclad.detectors.catalog import DETECTORS
from inclad.detectors.profiles import with_profile
from inclad.reference import reference_table
from inclad.run.plan import plan

PROJECT = Path(__file__).parents[1]

# Hyperparameters of the tables by the names they have here.
NAMES = {
    "batch_size": "batch_size",
    "epochs": "epochs",
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "k_neighbors": "neighbors",
    "repulsion_neighbors": "repulsion_neighbors",
    "n_features": "channels",
    "covariance_regularization": "regularization",
    "coreset_sampling_ratio": "coreset_ratio",
    "coreset_projection_dim": "projection",
    "coreset_starting_points": "starts",
    "previous_ratio_cl": "history_ratio",
    "flow_steps": "flow_steps",
    "hidden_ratio": "hidden_ratio",
    "feature_width_n_features": "width",
    "latent_vector_size": "latent_size",
    "student_bootstrap_layer": "bootstrap_layer",
    "model_size": "model_size",
    "teacher_out_channels": "teacher_out_channels",
}
# Batches only carry images to these two; nothing is learned from one batch at a time.
NO_BATCHES = {"patchcore", "padim"}


def parameters(name: str) -> dict:
    return plan(PROJECT, "stream", f"params/paper/{name}.yml", [], "").parameters


@pytest.mark.parametrize("name", DETECTORS)
def test_a_file_a_detector_with_the_values_of_the_tables(name):
    given = parameters(name)
    assert (given["detectors"], given["profile"]) == ([name], "paper")
    settings = with_profile(given["profile"], given["options"])
    check_learners([name], PROTOCOLS, settings)
    check_size([name], given["image_size"])
    learner = make_learner(name, "continual", settings.get(name))
    table = reference_table("table6_7_hyperparameters")
    rows = table[(table["model"].str.lower() == name) & table["value"].notna()]
    compared = 0
    for key, value in rows[["hyperparameter", "value"]].itertuples(index=False):
        if key == "input_size":
            assert value == f"{given['image_size']}x{given['image_size']}"
        elif key == "backbone":
            assert given["backbone"] in value.split(" / ")
        elif key in NAMES and not (name in NO_BATCHES and key == "batch_size"):
            owner = learner if hasattr(learner, NAMES[key]) else learner.detector
            # RD4AD's Adam has no weight decay to set, as the paper's has none.
            found = getattr(owner, NAMES[key], 0.0 if key == "weight_decay" else None)
            assert str(found) == value or float(found) == float(value), key
            compared += 1
    assert compared >= 2


def test_one_step_of_cfa_with_the_papers_values(extractor, tasks, monkeypatch):
    """The trained ones have such a test in their own files; CFA's plain AdamW is here."""
    detector = make_learner("cfa", "naive", parameters("cfa")["options"]["cfa"] | {"epochs": 1}).detector
    images = extractor.images(tasks[0].train)
    centre = cfa.mean_features(images)
    detector.start(centre)
    weight = detector.descriptor.weight.detach().clone().requires_grad_()
    bias = detector.descriptor.bias.detach().clone().requires_grad_()
    radius = torch.tensor(1e-5, requires_grad=True)
    bank = detector.describe(centre)
    detector.train(images, bank)
    optimizer = torch.optim.AdamW([weight, bias, radius], lr=1e-3, weight_decay=5e-4, amsgrad=True)
    (batch,) = images
    embeddings = (cfa.features(batch) @ weight.T + bias).flatten(0, 1)
    squares = torch.cdist(embeddings.double(), bank.double()).square().sort(1).values
    pulled = (squares[:, :3] - radius**2).relu().mean()
    pushed = (radius**2 - squares[:, 3:6] - 0.1).relu().mean()
    ((pulled + pushed) / 1e-3).backward()
    optimizer.step()
    assert torch.allclose(detector.descriptor.weight, weight, atol=2e-5)
