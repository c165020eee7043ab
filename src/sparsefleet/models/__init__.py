"""Ready models: ordinary `torch.nn.Module`s that take a Batch."""

from sparsefleet.models.ctr_dnn import CTRDNN, PRESETS, CTRDNNConfig

__all__ = ["CTRDNN", "PRESETS", "CTRDNNConfig"]
