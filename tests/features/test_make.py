"""`fastget features` makes what the backbone says, once, and goes on wherever it was killed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastget
from fastget.common.errors import RunFailed
from fastget.data.domains import load_domains
from fastget.data.feature_store import INDEX, Store, write_shard
from fastget.features import make
from fastget.features.make import make_features
from fastget.networks.network import build_network
from fastget.networks.provenance import digest_of
from fastget.training.engine import Engine
from tests.forks import as_ranks
from tests.pictures import write_domains

SETTINGS: dict[str, Any] = {
    "data.name": "folder",
    "data.resize": 20,
    "data.crop": 16,
    "network.name": "small",
    "network.weights": "none",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_domains(tmp_path / "images")  # 36 images a domain


def config(root: Path, **settings: Any) -> fastget.Config:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return fastget.make_config({**SETTINGS, "data.root": str(root), **given})


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_features_are_the_backbones(root: Path, dtype: Any) -> None:
    settings = config(root)
    made = make_features(settings, "out", dtype=dtype, shard=10)
    assert (made.images, made.kept, made.left_out) == (72, 0, [])
    store = Store.open(Path("out"))
    assert store == made.store
    assert store.classes == ("ant", "bee", "cat")
    domains = load_domains(dataclasses.replace(settings.data, source="photo", target="sketch"))
    engine = Engine(settings, 0, domains, torch.device("cpu"))
    assert store.origin.weights_sha256 == digest_of(engine.network.backbone)
    with torch.no_grad():
        expected = torch.cat([engine.network.backbone(b.images) for b in engine.loaders.evaluation.batches()])
    found = store.rows("sketch")
    assert found.features.dtype == dtype
    np.testing.assert_allclose(found.features, expected.numpy(), rtol=0 if dtype == "float32" else 1e-3, atol=1e-4)
    assert list(found.paths) == list(domains.target.paths)
    assert found.labels.tolist() == domains.target.labels.tolist()
    assert [entry.rows for entry in store.domains["photo"]] == [10, 10, 10, 6]


@pytest.mark.parametrize("written", [True, False], ids=["after a shard", "while a shard is written"])
def test_killed_at_any_shard_it_goes_on(root: Path, written: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make_features(config(root), "whole", shard=10)
    real, calls = write_shard, []

    def killed(file: Path, *args: Any) -> Any:
        calls.append(file.name)
        if written:
            real(file, *args)
        else:
            file.with_name(f".{file.stem}.0.part.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    for kill in range(3):
        monkeypatch.setattr(make, "write_shard", killed)
        with pytest.raises(KeyboardInterrupt):
            make_features(config(root), "out", shard=10)
        assert "photo" not in Store.open(Path("out")).domains
        with pytest.raises(ValueError, match=r"no features of 'photo'.*finishes them"):
            Store.open(Path("out")).images("photo")
        assert calls[-1] == f"photo-0000{kill if written else 0}.safetensors"
    monkeypatch.setattr(make, "write_shard", real)
    made = make_features(config(root), "out", shard=10)
    assert made.kept == (30 if written else 0)
    assert contents(Path("out")) == contents(Path("whole"))


def test_killed_between_two_domains_or_with_a_domain_added(root: Path) -> None:
    (root / "sketch").rename(root / "the sketch: dürer")  # a name that no file may have
    make_features(config(root), "whole", shard=10)
    make_features(config(root), "out", ["photo"], shard=10)
    first = contents(Path("out"))
    made = make_features(config(root), "out", ["the sketch: dürer"], shard=10)
    assert len(made.store.images("the sketch: dürer")) == 36
    assert made.kept == 0
    assert contents(Path("out")).items() >= {k: v for k, v in first.items() if k != INDEX}.items()
    assert contents(Path("out")) == contents(Path("whole"))


def test_a_changed_image_and_a_damaged_shard_are_made_again(root: Path) -> None:
    make_features(config(root), "out", shard=10)
    before = contents(Path("out"))
    image = root / "photo" / "ant" / "001.jpg"
    image.write_bytes((root / "sketch" / "ant" / "001.jpg").read_bytes())
    shard = Path("out") / "sketch-00001.safetensors"
    shard.write_bytes(before[shard.name][:-1] + bytes([before[shard.name][-1] ^ 1]))
    with pytest.raises(ValueError, match=r"sketch-00001\.safetensors is damaged \(its checksum is wrong\)"):
        Store.open(Path("out")).images("sketch")
    made = make_features(config(root), "out", shard=10)
    assert made.kept == 72 - 20
    after = contents(Path("out"))
    assert {name for name in after if after[name] != before[name]} == {"photo-00000.safetensors", INDEX}


def test_another_backbone_is_refused(root: Path) -> None:
    make_features(config(root), "out", ["photo"])
    for other in ({"train__seeds": (1,)}, {"data__resize": 24}):
        with pytest.raises(ValueError, match=r"made otherwise: .* there, .* here.*Choose another --out"):
            make_features(config(root, **other), "out", ["sketch"])
    with pytest.raises(ValueError, match=r"dtype \('float16' there, 'float32' here\)"):
        make_features(config(root), "out", ["sketch"], dtype="float32")
    (root / "sketch" / "dog").mkdir()
    (root / "sketch" / "dog" / "1.png").write_bytes((root / "sketch" / "ant" / "000.png").read_bytes())
    with pytest.raises(ValueError, match=r"classes .ant, bee, cat there, ant, bee, cat and 1 more here"):
        make_features(config(root), "out")


def test_a_folder_of_something_else_is_refused(root: Path) -> None:
    """The images' own, above all: shards would lie among them."""
    before = sorted(root.rglob("*"))
    with pytest.raises(ValueError, match=r"holds other files \(.*\): features go to a folder of their own"):
        make_features(config(root), root)
    assert sorted(root.rglob("*")) == before


def test_bad_images_by_policy(root: Path) -> None:
    (root / "photo" / "ant" / "001.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"001\.jpg is empty.*--bad-images skip"):
        make_features(config(root), "out")
    assert not Path("out").exists()
    made = make_features(config(root, data__bad_images="skip"), "out", shard=10)
    assert [Path(bad["path"]).name for bad in made.left_out] == ["001.jpg"]
    assert len(made.store.rows("photo")) == 35


def test_images_that_only_decoding_finds_bad(root: Path) -> None:
    """They pass the quick look at the start."""
    for name in ("ant/001.jpg", "bee/011.jpg"):
        file = root / "photo" / name
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes(64) + content[middle + 64 :])
    file = root / "photo" / "cat" / "009.png"  # the last of a shard
    flipped = bytearray(file.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    file.write_bytes(flipped)
    with pytest.raises(RunFailed, match=r"cannot read .*\. The finished shards are kept.*--bad-images skip"):
        make_features(config(root), "out", shard=10)
    skip = config(root, data__bad_images="skip", data__bad_threshold=0.5)
    made = make_features(skip, "out", shard=34)
    names = {str(Path(bad["path"]).relative_to(root / "photo")) for bad in made.left_out}
    assert "cat/009.png" in names
    assert all(bad["reason"] for bad in made.left_out)
    rows = made.store.rows("photo")
    assert len(rows) == 36 - len(names)
    assert not {f"photo/{name}" for name in names} & set(rows.paths)
    again = make_features(skip, "out", shard=34)
    assert (again.kept, again.left_out) == (72, made.left_out)
    with pytest.raises(RunFailed, match=r"images cannot be read, over data.bad_threshold=0"):
        make_features(config(root, data__bad_images="skip", data__bad_threshold=0.0), "other")


def test_what_float16_cannot_hold_is_refused(root: Path) -> None:
    network = build_network(config(root).network, 3, 16)
    state = {k: v * 1e4 if k.startswith("stages") else v for k, v in network.backbone.state_dict().items()}
    torch.save(state, "large.pt")
    with pytest.raises(RunFailed, match="beyond float16: store them by --dtype float32"):
        make_features(config(root, network__weights="large.pt"), "out")
    made = make_features(config(root, network__weights="large.pt"), "wide", dtype="float32")
    assert made.store.origin.weights == "large.pt"


def test_two_ranks_make_what_one_makes() -> None:
    """Two shards a domain, one for each."""
    settings = {"data.name": "digits", "data.resize": 16, "data.crop": 16}
    one = make_features(fastget.make_config(settings), "one")
    assert [len(entries) for entries in one.store.domains.values()] == [2, 2]
    words = [f"{key}={value}" for key, value in settings.items()]
    codes, said = as_ranks(2, "features", "--out", "two", "--set", *words)
    assert codes == [0, 0], said.words
    assert said.out.count("3,797 images") == 1  # one of them prints
    assert contents(Path("one")) == contents(Path("two"))


def test_the_index_tells_of_a_backbone_of_timm(root: Path) -> None:
    backbone = {"network__name": "timm/test_vit", "data__resize": None, "data__crop": 32}
    origin = make_features(config(root, **backbone), "out", ["photo"]).store.origin
    assert (origin.backbone, origin.weights, origin.dim) == ("timm/test_vit", "random of seed 0", 64)
    assert (origin.resize, origin.crop, origin.interpolation) == (34, 32, "bicubic")
    assert origin.mean == origin.std == (0.5, 0.5, 0.5)
    for field, other, told in (
        ("interpolation", "bilinear", r"interpolation \('bicubic' there, 'bilinear' here\)"),
        ("mean", (0.4, 0.4, 0.4), r"mean \(\(0\.5, 0\.5, 0\.5\) there, \(0\.4, "),
    ):
        with pytest.raises(ValueError, match=rf"made otherwise: .*{told}"):
            make_features(config(root, **backbone, **{f"data__{field}": other}), "out", ["photo"])


def test_a_folder_that_does_not_tell_its_interpolation_is_added_to(root: Path) -> None:
    """Of before it was told, when `imagenet` stood for the weights, whose sha256 says which they are."""
    make_features(config(root), "out", ["photo"])
    file = Path("out", INDEX)
    tree = json.loads(file.read_text())
    del tree["origin"]["interpolation"]
    tree["origin"]["weights"] = "imagenet"
    file.write_text(json.dumps(tree))
    store = make_features(config(root), "out", ["sketch"]).store
    assert store.origin.interpolation == "bilinear"
    assert store.origin.weights == "imagenet"
    assert len(store.rows("sketch")) == 36
