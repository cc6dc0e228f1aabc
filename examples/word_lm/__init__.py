"""An LSTM language model, with Gluon and with the Symbolic API."""
