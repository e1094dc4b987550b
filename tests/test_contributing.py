"""The detector that CONTRIBUTING.md adds in one file works in a stream, naive and continual."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from inclad.continual.catalog import CONTINUAL, PROTOCOLS, make_learner
from inclad.continual.learner import load_learner, save_learner
from inclad.continual.replay import Replay
from inclad.detectors.catalog import DETECTORS
from inclad.stream import run_stream

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


@pytest.fixture
def added(tmp_path, monkeypatch) -> str:
    """The page's code in a file of its own, under its name in both catalogs."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "mean.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mean", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(DETECTORS, "mean", module.Mean)
    monkeypatch.setitem(CONTINUAL, "mean", Replay)
    return "mean"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_goes_through_a_stream(added, extractor, tasks, protocol):
    steps = list(run_stream(tasks, make_learner(added, protocol), extractor))
    assert [len(step.evaluations) for step in steps] == [1, 2, 3]
    # Each defect is a square that is easy to see, at least right after its task was learned.
    assert all(step.evaluations[-1].image > 0.9 and step.evaluations[-1].pixel > 0.9 for step in steps)
    assert steps[0].kept_bytes >= 12 * 8 * 8 * 4


def test_its_mean_is_the_mean(added, extractor, tasks):
    learner = make_learner(added, "naive")
    learner.learn(extractor.images(tasks[0].train))
    every = [extractor.features([sample], (2,))[0][0] for sample in tasks[0].train]
    assert torch.allclose(learner.state()["mean"], sum(every) / len(every), atol=1e-6)


def test_its_options_are_checked_and_its_state_is_saved(added, extractor, tasks, tmp_path):
    with pytest.raises(ValueError, match=r"mean: unknown option 'sigm' \(known: sigma"):
        make_learner(added, "continual", {"sigm": 2.0})
    learner, other = (make_learner(added, "continual", {"sigma": 2.0}) for _ in range(2))
    learner.learn(extractor.images(tasks[0].train))
    save_learner(learner, tmp_path / "state.safetensors")
    load_learner(other, tmp_path / "state.safetensors", extractor)
    (batch,) = extractor.images(tasks[1].test)
    assert all(map(torch.equal, learner.score(batch), other.score(batch)))
