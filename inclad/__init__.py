"""Continual visual anomaly detection: the InCLAD benchmark, from images to a browsable book."""
