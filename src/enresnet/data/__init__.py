"""Where images come from: verified, whole in memory where they fit, augmented in batches."""

from typing import TYPE_CHECKING

from enresnet.lazy import load_on_first_use

if TYPE_CHECKING:
    from enresnet.data.adversarial import AdversarialSet as AdversarialSet
    from enresnet.data.adversarial import describe_adversarial_set as describe_adversarial_set
    from enresnet.data.adversarial import is_adversarial_set as is_adversarial_set
    from enresnet.data.adversarial import load_adversarial_set as load_adversarial_set
    from enresnet.data.augment import Augmentation as Augmentation
    from enresnet.data.folder import Layout as Layout
    from enresnet.data.images import Images as Images
    from enresnet.data.images import from_dataset as from_dataset
    from enresnet.data.names import DataSet as DataSet
    from enresnet.data.names import load_data as load_data
    from enresnet.data.names import load_test_images as load_test_images
    from enresnet.data.sources import cache_folder as cache_folder

__all__ = load_on_first_use(
    __name__,
    {
        "adversarial": "AdversarialSet describe_adversarial_set is_adversarial_set "
        "load_adversarial_set",
        "augment": "Augmentation",
        "folder": "Layout",
        "images": "Images from_dataset",
        "names": "DataSet load_data load_test_images",
        "sources": "cache_folder",
    },
)
