"""What is known of a data set by its name: how it lies on disk, who publishes it, and what to count.

Nothing is downloaded. A root that is almost right gets advice: `published.py` looks at it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Layout = Literal["folders", "lists", "ssda lists"]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is known of a data set."""

    name: str
    title: str
    domains: dict[str, int]  # name -> images, as published
    num_classes: int
    classes: tuple[str, ...] = ()  # in the order of their labels; empty: as the published lists number them
    layout: Layout = "folders"
    tree: tuple[str, ...]  # what the root holds, in words
    publisher: str
    archives: tuple[str, ...]  # as they are named there
    metric: Literal["accuracy", "mean_class_accuracy"] = "accuracy"
    folders: dict[str, str] = field(default_factory=dict)  # domain -> its folder in the archive, where that is another
    also: dict[str, tuple[str, ...]] = field(default_factory=dict)  # domain -> what people's copies call it
    between: str = ""  # a folder between domain and class, where there is one
    ssda: str = ""  # the folder of the published SSDA lists, under txt/
    ssda_names: dict[str, str] = field(default_factory=dict)  # domain -> what those lists call it


OFFICE31 = (
    "back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer file_cabinet "
    "headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug paper_notebook pen phone printer "
    "projector punchers ring_binder ruler scissors speaker stapler tape_dispenser trash_can"
)
# In the order of the published lists, which is alphabetical without regard to case.
OFFICE_HOME = (
    "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards Computer Couch "
    "Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder Fork Glasses Hammer Helmet "
    "Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil "
    "Postit_Notes Printer Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker "
    "Spoon Table Telephone ToothBrush Toys Trash_Can TV Webcam"
)
VISDA = "aeroplane bicycle bus car horse knife motorcycle person plant skateboard train truck"
PACS = "dog elephant giraffe guitar horse house person"
DOMAINNET = {
    "clipart": 48_129,
    "infograph": 51_605,
    "painting": 72_266,
    "quickdraw": 172_500,
    "real": 172_947,
    "sketch": 69_128,
}

DATA_SETS = {
    known.name: known
    for known in (
        DataSet(
            name="digits",
            title="Digits: from fonts to handwriting, VisDA in miniature (made on this machine)",
            domains={"fonts": 2_000, "handwritten": 1_797},
            num_classes=10,
            classes=tuple("0123456789"),
            tree=("fonts/0/0000.png", "handwritten/0/0000.png"),
            publisher="made by fastget from the fonts that ship with matplotlib and the scans that ship with "
            "scikit-learn; needs no --root",
            archives=(),
        ),
        DataSet(
            name="office31",
            title="Office-31 (Saenko et al., 2010)",
            domains={"amazon": 2_817, "dslr": 498, "webcam": 795},
            num_classes=31,
            classes=tuple(OFFICE31.split()),
            tree=("amazon/images/back_pack/frame_0001.jpg", "dslr/images/...", "webcam/images/..."),
            publisher="the page `Adapting Visual Category Models to New Domains` of UC Berkeley's vision group",
            archives=("domain_adaptation_images.tar.gz", "office31.zip"),
            also={"amazon": ("Amazon",), "dslr": ("DSLR",), "webcam": ("Webcam",)},
            between="images",
            ssda="office",
        ),
        DataSet(
            name="office-home",
            title="Office-Home (Venkateswara et al., 2017)",
            domains={"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "RealWorld": 4_357},
            num_classes=65,
            classes=tuple(OFFICE_HOME.split()),
            tree=("Art/Alarm_Clock/00001.jpg", "Clipart/...", "Product/...", "RealWorld/... (or Real World/...)"),
            publisher="the page `Deep Hashing Network for Unsupervised Domain Adaptation` on hemanthdv.github.io",
            archives=("OfficeHomeDataset_10072016.zip",),
            folders={"RealWorld": "Real World"},
            also={"RealWorld": ("Real_World", "Real-World", "Real")},
            ssda="office_home",
            ssda_names={"RealWorld": "Real"},
        ),
        DataSet(
            name="visda2017",
            title="VisDA-2017, classification (Peng et al., 2017): from synthetic to real",
            domains={"train": 152_397, "validation": 55_388},
            num_classes=12,
            classes=tuple(VISDA.split()),
            layout="lists",
            tree=("train/image_list.txt", "train/aeroplane/....png", "validation/image_list.txt", "validation/..."),
            publisher="the VisDA-2017 challenge of Boston University, ai.bu.edu/visda-2017, classification track",
            archives=("train.tar", "validation.tar"),
            metric="mean_class_accuracy",
            also={"train": ("visda_train", "synthetic"), "validation": ("val", "visda_validation", "real")},
        ),
        DataSet(
            name="domainnet126",
            title="DomainNet-126: the four domains and 126 classes of SSDA (Saito et al., 2019)",
            domains={"clipart": 18_703, "painting": 31_502, "real": 70_358, "sketch": 24_582},
            num_classes=126,
            layout="ssda lists",
            tree=(
                "clipart/ant/clipart_007_000030.jpg",
                "painting/...",
                "real/...",
                "sketch/...",
                "txt/multi/labeled_source_images_real.txt",
                "txt/multi/labeled_target_images_clipart_3.txt",
                "txt/multi/unlabeled_target_images_clipart_3.txt",
                "txt/multi/validation_target_images_clipart_3.txt",
            ),
            publisher="images: the DomainNet page of Boston University, ai.bu.edu/M3SDA (cleaned version); lists: the "
            "folder data/txt/multi of the repository VisionLearningGroup/SSDA_MME on GitHub",
            archives=("clipart.zip", "painting.zip", "real.zip", "sketch.zip"),
            ssda="multi",
        ),
        DataSet(
            name="domainnet",
            title="DomainNet (Peng et al., 2019), all 345 classes",
            domains=DOMAINNET,
            num_classes=345,
            layout="lists",
            tree=("clipart/aircraft_carrier/clipart_001_000001.jpg", "clipart_train.txt", "clipart_test.txt", "..."),
            publisher="the DomainNet page of Boston University, ai.bu.edu/M3SDA (cleaned version), with a train and a "
            "test list for each domain",
            archives=tuple(f"{domain}.zip" for domain in DOMAINNET),
        ),
        DataSet(
            name="pacs",
            title="PACS (Li et al., 2017)",
            domains={"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929},
            num_classes=7,
            classes=tuple(PACS.split()),
            tree=("art_painting/dog/pic_001.jpg", "cartoon/...", "photo/...", "sketch/..."),
            publisher="the page `Deeper, Broader and Artier Domain Generalization` of the SketchX group",
            archives=("PACS.zip", "pacs_data.zip"),
            also={"art_painting": ("art", "Art", "art painting")},
        ),
    )
}
NAMES = (*DATA_SETS, "folder", "lists", "features")  # what data.name may be
