"""Scripts and manifests for schedulers: one supervisor a machine there too, so that a hang is seen everywhere."""
