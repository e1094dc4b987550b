"""Shared by the tests of the runner."""

from pathlib import Path

import pytest
from runner_project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
