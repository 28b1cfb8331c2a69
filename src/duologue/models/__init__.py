"""Model plugins: each package binds one way of answering to the stage and plugin contracts."""
