"""The ledger: what becomes of each layer's gradients in low precision, kept over a run."""
