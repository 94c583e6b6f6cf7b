"""Work that outlives a process: workers that hold tasks under leases, and the bells that wake them."""
