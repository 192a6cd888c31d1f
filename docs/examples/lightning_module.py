"""The Trainer of Lightning as a learner; the two lines that isthmus needs have its name in them.

isthmus train --loop lightning_module.py --learners 2 --tokens 200000
"""

import lightning
import torch
from torch.nn import functional as F

import isthmus.torch


class Module(lightning.LightningModule):
    """Sums of 32 numbers."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.layers(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


lightning.seed_everything(0)
x = torch.randn(4096, 32)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), 64, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=1000,
    accumulate_grad_batches=2,
    accelerator="cpu",
    devices=1,
    logger=False,
    callbacks=[isthmus.torch.LightningCallback()],
)
module = Module()
trainer.fit(module, loader)
