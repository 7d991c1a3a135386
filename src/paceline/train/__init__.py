"""Training: the engine, the feed and the telemetry joined into a loop. Owns no mathematics."""
