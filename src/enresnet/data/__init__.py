"""Where images come from: verified, whole in memory where they fit, augmented in batches."""

from typing import TYPE_CHECKING

from enresnet.common.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.data.attacked import AdversarialSet as AdversarialSet
    from enresnet.data.attacked import describe_adversarial_set as describe_adversarial_set
    from enresnet.data.attacked import is_adversarial_set as is_adversarial_set
    from enresnet.data.attacked import load_adversarial_set as load_adversarial_set
    from enresnet.data.augment import Augmentation as Augmentation
    from enresnet.data.download import cache_folder as cache_folder
    from enresnet.data.folder import Layout as Layout
    from enresnet.data.images import Images as Images
    from enresnet.data.images import from_dataset as from_dataset
    from enresnet.data.registry import DataSet as DataSet
    from enresnet.data.registry import load_data as load_data
    from enresnet.data.registry import load_test_images as load_test_images

__all__ = load_on_first_use(
    __name__,
    {
        "attacked": "AdversarialSet describe_adversarial_set is_adversarial_set "
        "load_adversarial_set",
        "augment": "Augmentation",
        "folder": "Layout",
        "images": "Images from_dataset",
        "registry": "DataSet load_data load_test_images",
        "download": "cache_folder",
    },
)
