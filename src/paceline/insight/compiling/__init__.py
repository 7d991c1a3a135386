"""Programs compiled for devices that may not be here, and kept on disk."""
