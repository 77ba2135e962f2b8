"""Runs: data in batches, schedules, the loop, stopping, data that come and go, files of runs."""
