"""deepspeed.launcher.runner."""

DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
