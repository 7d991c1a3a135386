"""The documents of the JSON API, each a pure function of a run as it is read by now."""
