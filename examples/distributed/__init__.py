"""The image classification scripts in several processes that train together."""
