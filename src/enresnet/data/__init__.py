"""Where images come from: verified, whole in memory where they fit, augmented in batches."""

from typing import TYPE_CHECKING

from enresnet.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.data.augment import Augmentation as Augmentation
    from enresnet.data.images import Images as Images
    from enresnet.data.images import from_dataset as from_dataset
    from enresnet.data.names import DataSet as DataSet
    from enresnet.data.names import load_data as load_data

__all__ = load_on_first_use(
    __name__,
    {
        "augment": "Augmentation",
        "images": "Images from_dataset",
        "names": "DataSet load_data",
    },
)
