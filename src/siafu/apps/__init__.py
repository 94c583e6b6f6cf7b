"""What people use siafu for."""
