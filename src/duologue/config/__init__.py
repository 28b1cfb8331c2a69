"""Configuration: typed, validated, immutable."""
