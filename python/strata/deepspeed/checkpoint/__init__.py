"""deepspeed.checkpoint."""
