# A training configuration in the manner of mmengine's: a program.
from mmengine.optim import CosineAnnealingLR
from xtuner.dataset import process_hf_dataset

pretrained_model_name_or_path = 'internlm/internlm2-chat-7b'
batch_size = 1
accumulative_counts = 16
max_epochs = 3
optim_wrapper = dict(type='AmpOptimWrapper', accumulative_counts=accumulative_counts)
