"""The paper, checked against its own numbers: tables, verdicts in words, plots. Imported by notebooks only."""
