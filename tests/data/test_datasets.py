"""Data sets by name and root, as users have them on disk; advice when the root is almost right."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fastget.config import PRESETS, DataConfig, fields_of, make_config
from fastget.data.datasets import DATA_SETS
from fastget.data.domains import find_domains, load_domains
from fastget.data.protocols import Domains
from fastget.data.published import present, read_domain
from tests.pictures import pixels


def put(root: Path, *paths: str) -> Path:
    for number, path in enumerate(paths):
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix in (".jpg", ".png"):
            Image.fromarray(pixels(number)).save(file)
        else:
            file.write_text("")
    return root


def office_home(root: Path, per_class: int = 3) -> Path:
    names = ("Alarm_Clock", "Fork", "TV", "Trash_Can")
    for domain in ("Art", "Clipart", "Product", "RealWorld"):
        put(root, *(f"{domain}/{name}/{i:05d}.jpg" for name in names for i in range(1, per_class + 1)))
    return root


def config(name: str, root: Path, **fields: object) -> DataConfig:
    settings = {"data.name": name, "data.root": str(root), **{f"data.{key}": value for key, value in fields.items()}}
    return make_config(settings).data


def test_what_is_known_is_consistent() -> None:
    totals = {name: sum(known.domains.values()) for name, known in DATA_SETS.items()}
    assert totals["office31"] == 4_110
    assert totals["office-home"] == 15_588
    assert totals["visda2017"] == 207_785
    assert totals["domainnet"] == 586_575
    assert totals["pacs"] == 9_991
    for name, known in DATA_SETS.items():
        assert len(known.classes) in (0, known.num_classes), name
        assert len(set(known.classes)) == len(known.classes)
        assert list(known.classes) == sorted(known.classes, key=str.lower)
        assert known.tree
        assert known.publisher
        assert name in fields_of(DataConfig)["name"].metadata["help"]
        assert name in PRESETS
        assert PRESETS[name]["data.source"] in known.domains
        assert PRESETS[name]["data.target"] in known.domains


def test_presets_are_the_paper_s() -> None:
    epochs = {name: make_config({"data.name": name}).train.epochs for name in DATA_SETS}
    assert (epochs["office-home"], epochs["office31"], epochs["visda2017"], epochs["domainnet126"]) == (50, 100, 1, 20)
    assert make_config({"data.name": "office-home"}).data.pda_classes == 25
    assert make_config({"data.name": "domainnet126"}).network.name == "resnet34"


def test_office_home(tmp_path: Path) -> None:
    source, target = find_domains(config("office-home", office_home(tmp_path), source="Art", target="RealWorld"))
    assert len(source.classes) == 65
    assert {source.classes[c] for c in source.labels.tolist()} == {"Alarm_Clock", "Fork", "TV", "Trash_Can"}
    assert source.labels[source.paths.index("Art/TV/00001.jpg")] == 63  # as in the published lists
    assert source.labels[source.paths.index("Art/Fork/00001.jpg")] == 24
    assert target.name == "RealWorld"
    kept = load_domains(config("office-home", tmp_path, setting="pda")).target
    assert {kept.classes[c] for c in kept.labels.tolist()} == {"Alarm_Clock", "Fork"}  # of the first 25
    notes = load_domains(config("office-home", tmp_path)).notes
    assert "Art: 12 images, and 2,427 were published" in notes


@pytest.mark.parametrize("middle", ["images/", ""])
def test_office31(tmp_path: Path, middle: str) -> None:
    put(
        tmp_path,
        *(f"{d}/{middle}{c}/frame_0001.jpg" for d in ("amazon", "dslr", "webcam") for c in ("back_pack", "mug")),
    )
    source, target = find_domains(config("office31", tmp_path, source="amazon", target="webcam"))
    assert source.paths[0] == f"amazon/{middle}back_pack/frame_0001.jpg"
    assert source.labels.tolist() == target.labels.tolist() == [0, 17]


def test_visda(tmp_path: Path) -> None:
    put(tmp_path, "train/aeroplane/src_1.png", "train/truck/src_2.png", "validation/car/1.jpg")
    (tmp_path / "train" / "image_list.txt").write_text("aeroplane/src_1.png 0\ntruck/src_2.png 11\n")
    source, target = find_domains(config("visda2017", tmp_path))  # validation has no list: its folders will do
    assert source.paths == ["train/aeroplane/src_1.png", "train/truck/src_2.png"]
    assert source.labels.tolist() == [0, 11]
    assert (target.paths, target.labels.tolist()) == (["validation/car/1.jpg"], [3])
    assert load_domains(config("visda2017", tmp_path)).left_out == []
    (tmp_path / "train" / "image_list.txt").write_text("aeroplane/src_1.png 12\n")
    with pytest.raises(ValueError, match=r"image_list\.txt, line 1: class 12 is out of range"):
        find_domains(config("visda2017", tmp_path))


def test_domainnet(tmp_path: Path) -> None:
    put(
        tmp_path,
        *(f"{d}/ant/{d}_1.jpg" for d in ("real", "clipart")),
        *(f"{d}/zoo/{d}_2.jpg" for d in ("real", "clipart")),
    )
    for domain in ("real", "clipart"):
        (tmp_path / f"{domain}_train.txt").write_text(f"{domain}/ant/{domain}_1.jpg 6\n")
        (tmp_path / f"{domain}_test.txt").write_text(f"{domain}/zoo/{domain}_2.jpg 344\n")
    source, target = find_domains(config("domainnet", tmp_path))
    assert len(source.classes) == 345
    assert (source.classes[6], source.classes[344]) == ("ant", "zoo")
    assert target.labels.tolist() == [6, 344]
    assert present(DATA_SETS["domainnet"], tmp_path) == ["clipart", "real"]


@pytest.mark.parametrize("beside", [False, True])
def test_domainnet126(tmp_path: Path, beside: bool) -> None:
    """Images and lists under one root, or as SSDA_MME keeps them: data/multi and data/txt/multi."""
    images = tmp_path / "multi" if beside else tmp_path
    lists = tmp_path / "txt" / "multi"
    lists.mkdir(parents=True)
    for domain in ("real", "sketch"):
        paths = [f"{domain}/{name}/{i}.jpg" for name in ("ant", "bee") for i in range(3)]
        put(images, *paths)
        labels = {"ant": 0, "bee": 1}
        lines = [f"{path} {labels[path.split('/')[1]]}" for path in paths]
        (lists / f"labeled_source_images_{domain}.txt").write_text("\n".join(lines))
        (lists / f"labeled_target_images_{domain}_1.txt").write_text("\n".join(lines[1::3]))
        rest = [line for line in lines if line not in lines[1::3]]
        (lists / f"unlabeled_target_images_{domain}_1.txt").write_text("\n".join(rest))
    for root in (tmp_path, images):
        found = load_domains(config("domainnet126", root, source="real", target="sketch", setting="ssda", shots=1))
        assert found.labelled_target
        assert found.labelled_target.paths == ["sketch/ant/1.jpg", "sketch/bee/1.jpg"]
        assert len(found.target) == 4
        assert len(found.source) == 6
        assert found.protocol["split"] == "published lists"
    drawn = load_domains(config("domainnet126", tmp_path, source="real", target="sketch", setting="ssda", shots=2))
    assert drawn.protocol["split"] == "drawn with seed 0"


def test_ssda_lists_given_by_name(tmp_path: Path) -> None:
    put(tmp_path, "a.jpg", "b.jpg", "c.jpg")

    def found(rest: str) -> Domains:
        for name, line in (("source", "a.jpg 0"), ("shots", "b.jpg 0"), ("rest", rest)):
            (tmp_path / f"{name}.txt").write_text(line)
        files = {"source": "source", "target": "rest", "labelled_target": "shots"}
        given = {field: str(tmp_path / f"{name}.txt") for field, name in files.items()}
        return load_domains(config("lists", tmp_path, setting="ssda", **given))

    labelled = found("c.jpg 0").labelled_target
    assert labelled
    assert labelled.paths == ["b.jpg"]
    # a target list that holds the shots too, one of them by its absolute path: they are not scored
    both = found(f"c.jpg 0\n{tmp_path}/b.jpg 0\n")
    assert both.target.paths == ["c.jpg"]
    assert (both.protocol["shots_left_out"], both.protocol["lists"]["target"]["images"]) == (1, 1)
    assert any("1 of its images are the labelled shots of shots" in note for note in both.notes)
    with pytest.raises(ValueError, match="rest has no image of its own beside the labelled shots"):
        found("b.jpg 0\n")


# --- advice --------------------------------------------------------------------------------------


def advice(name: str, root: Path, domain: str) -> str:
    with pytest.raises(ValueError, match=name) as error:
        read_domain(DATA_SETS[name], root, domain)
    assert "Expected under --root" in str(error.value)
    return str(error.value)


def test_an_archive_that_is_not_extracted(tmp_path: Path) -> None:
    put(tmp_path, "OfficeHomeDataset_10072016.zip")
    assert "is not extracted. Extract it: unzip" in advice("office-home", tmp_path, "Art")
    put(tmp_path / "visda", "train.tar", "validation.tar")
    assert f"tar -xf '{tmp_path}/visda/validation.tar'" in advice("visda2017", tmp_path / "visda", "validation")
    assert "is a file, not a folder" in advice("office-home", tmp_path / "OfficeHomeDataset_10072016.zip", "Art")


def test_a_root_one_level_off(tmp_path: Path) -> None:
    office_home(tmp_path / "OfficeHomeDataset_10072016")
    assert f"one level deeper: use --root {tmp_path}/OfficeHomeDataset_10072016" in advice(
        "office-home", tmp_path, "Art"
    )
    too_deep = tmp_path / "OfficeHomeDataset_10072016" / "Art"
    assert f"one level too deep: use --root {too_deep.parent}" in advice("office-home", too_deep, "Clipart")


def test_a_domain_as_its_archive_calls_it(tmp_path: Path) -> None:
    root = office_home(tmp_path)
    by_name = read_domain(DATA_SETS["office-home"], root, "RealWorld")
    (root / "RealWorld").rename(root / "Real World")
    found = read_domain(DATA_SETS["office-home"], root, "RealWorld")
    assert found.paths == [path.replace("RealWorld/", "Real World/") for path in by_name.paths]
    assert found.labels.tolist() == by_name.labels.tolist()
    assert found.name == "RealWorld"
    assert present(DATA_SETS["office-home"], root) == list(DATA_SETS["office-home"].domains)


@pytest.mark.parametrize("name", ["Real_World", "real_world", "Real"])
def test_a_domain_by_another_name(tmp_path: Path, name: str) -> None:
    root = office_home(tmp_path)
    (root / "RealWorld").rename(root / name)
    message = advice("office-home", root, "RealWorld")
    assert f"It holds {name!r}, which fastget calls RealWorld" in message
    assert f"mv '{root}/{name}' '{root}/RealWorld'" in message
    with pytest.raises(ValueError, match="which fastget calls RealWorld"):
        present(DATA_SETS["office-home"], root)


def test_other_roots_that_are_wrong(tmp_path: Path) -> None:
    assert "There is no such folder" in advice("pacs", tmp_path / "none", "photo")
    assert "It is empty." in advice("pacs", tmp_path, "photo")
    put(tmp_path, "clipart/ant/1.jpg")
    assert "txt/multi/labeled_source_images_clipart.txt" in advice("domainnet126", tmp_path, "clipart")
    with pytest.raises(ValueError, match=r"no domain 'photos' \(did you mean 'photo'\?\)"):
        read_domain(DATA_SETS["pacs"], tmp_path, "photos")
    put(tmp_path, "photo/dogs/1.jpg")
    with pytest.raises(ValueError, match=r"none of its 7 classes: dogs \(did you mean 'dog'\?\)"):
        read_domain(DATA_SETS["pacs"], tmp_path, "photo")


def test_names_and_fields_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"did you mean 'office-home'\?"):
        find_domains(DataConfig(name="office_home"))
    with pytest.raises(ValueError, match=r"data\.root is missing"):
        find_domains(make_config({"data.name": "pacs"}).data)
    with pytest.raises(ValueError, match=r"source is missing: give one of art_painting, cartoon, photo, sketch by"):
        find_domains(DataConfig(name="pacs", root=str(tmp_path)))
    with pytest.raises(ValueError, match=r"data\.source is missing: give a list file"):
        find_domains(DataConfig(name="lists"))
