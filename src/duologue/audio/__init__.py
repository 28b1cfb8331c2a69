"""Sample formats, codecs and resampling. Import the module you need: this package imports nothing by itself."""
