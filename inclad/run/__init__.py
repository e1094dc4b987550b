"""Runs any parameterised notebook and publishes it as a book page; knows nothing of anomaly detection."""
