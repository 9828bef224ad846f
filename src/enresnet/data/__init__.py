"""Where images come from: verified, whole in memory where they fit, augmented in batches."""

from enresnet.data.augment import Augmentation
from enresnet.data.images import Images, from_dataset
from enresnet.data.names import DataSet, load_data

__all__ = ["Augmentation", "DataSet", "Images", "from_dataset", "load_data"]
