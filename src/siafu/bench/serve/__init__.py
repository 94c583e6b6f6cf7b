"""What `siafu serve` costs: beside a bare pass-through, in one run, in front of the same upstream."""
