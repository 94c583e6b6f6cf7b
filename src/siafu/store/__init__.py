"""What is remembered: journal, ledger and results behind the SQL door. SQL is the only truth."""
