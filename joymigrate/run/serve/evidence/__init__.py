"""What a ramp knows and decides: events in, weights and reasons out. No socket, clock or thread."""
