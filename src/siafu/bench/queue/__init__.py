"""What a durable task costs: siafu's queue beside Redis Streams alone and queues of others, in one run."""
