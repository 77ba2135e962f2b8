"""One message per batch to all weights, and where it lives."""
