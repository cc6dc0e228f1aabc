"""An LSTM language model with Gluon."""
