"""deepspeed.launcher: Accelerate's launcher looks for a name in it; processes are started by torchrun or Accelerate."""
