"""Arithmetic over flat float32 payloads: averages, Nesterov, stripes of cores, memory."""
