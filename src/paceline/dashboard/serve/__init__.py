"""The page's server: JSON, server-sent events and files over HTTP, on this machine unless asked otherwise."""
