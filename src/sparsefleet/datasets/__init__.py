"""Tools that make data ready: synth, prepare, download, show. The command line only wraps them."""
