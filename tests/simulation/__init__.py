"""The whole system in one process and one virtual clock, on thousands of schedules of faults; see CONTRIBUTING.md."""
