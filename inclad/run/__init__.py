"""Runs any parameterised notebook and publishes it as a book page; knows nothing of anomaly detection."""

import sys

# jsonschema, which nbformat loads, tries this optional parser for a format that no notebook uses, and building
# its grammar takes more than a second of every command. With None here the import fails and it goes without.
sys.modules.setdefault("rfc3987_syntax", None)
