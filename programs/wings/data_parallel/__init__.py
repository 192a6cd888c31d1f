"""Programs that average gradients at every step, to compare with: decides what a lost learner costs the others."""
