"""A headless Chromium for benches: opens pages, evaluates scripts in them, takes pictures of them."""
