"""Devices other than the processor tapeflow runs on. Nothing heavy is imported before one is asked for."""
