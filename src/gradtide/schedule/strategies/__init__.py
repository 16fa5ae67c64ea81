"""One builder file a strategy; importing this package registers them all."""
