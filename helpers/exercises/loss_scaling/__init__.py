"""Practice checks of loss scaling: a dynamic scaler for one optimizer."""

from ..base import Part
from .scaler import SCALER

PARTS = (Part("loss_scaling.scaler", ("LossScaler",), SCALER),)
