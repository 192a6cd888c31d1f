"""What is done with a trained model: reading it back from its run, exporting, sampling and evaluating it.

Decides which model of a run is read (its last one, or that of a snapshot), and what of it goes to which form. What a
model folder is, is decided in `model_folders`.
"""
