"""What the training scripts share: options, the loop, checkpoints, history, plot and table."""
