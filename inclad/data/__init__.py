"""Folders of images become tasks and samples; no model is known here."""
