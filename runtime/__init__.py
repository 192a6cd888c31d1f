"""The dataflow runtime: graphs, pure cores, and the shells that run them. It never imports jax or `isthmus.ops`."""
