"""One island: optimizer, the jitted step, evaluation, and the contract for tasks with their own."""
