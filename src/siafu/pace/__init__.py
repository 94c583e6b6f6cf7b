"""When to act: clock, deadline, backoff with jitter, buckets. Pure, apart from the clock's own sleep."""
