import tempfile

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments


class D(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        x = torch.randint(1, 30000, (512,))
        return {"input_ids": x, "labels": x}


m = BertForMaskedLM(BertConfig())
Trainer(
    m,
    TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        bf16=True,
        max_steps=8,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        dataloader_pin_memory=True,
    ),
    train_dataset=D(),
).train()
