"""Many ants: map, the one primitive."""
