"""`verify`: one device against K, for every scheme, with the cause named when they differ."""
