"""Runs and results side by side: `subjects.load_subject`, `document.compare_document`, and how both are shown."""
