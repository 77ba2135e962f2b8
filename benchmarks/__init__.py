"""Benchmarks of bayesmp against AdamW and IVON: what it learns, what it costs, and whether it stays calm.

`python -m benchmarks` runs those that suit a CPU, `python -m benchmarks NAME [options]` a single one. Each file is one
question; what they share is in networks, datasets, baselines, ours, runs, evaluation, timing and tables.
"""
