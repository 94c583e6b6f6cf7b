"""A hundred times as many requests within seconds: what `siafu serve` does with those that it cannot serve."""
