"""SSD detectors with Gluon and with the Symbolic API."""
