"""`gradtide plan --compress` and `gradtide train --compress`."""

import json
from dataclasses import replace

import pytest

from gradtide.cli.plan.command import plan
from gradtide.errors import ConfigError
from gradtide.train.settings import Settings

SLOW = "ethernet-cluster:2x1@0.1"  # two hosts, 100 Mbit/s


def test_plan_says_what_a_codec_saves(capsys):
    plan([SLOW, "--size", "80MB", "--compress", "int8", "--json"])
    found = json.loads(capsys.readouterr().out)["compress"]
    assert found["is_worth_it"]
    assert found["whole_s"] == pytest.approx(6.4, rel=1e-3)  # 80 MB there and back, at 12.5 MB/s
    assert found["links_s"] == pytest.approx(20e6 / 12.5e6, rel=0.01)  # a quarter, each way at once
    assert found["codec_s"] == pytest.approx(3 * 80e6 / 1.25e9)


@pytest.mark.parametrize("codec", ["int8", "powersgd:4"])
def test_plan_says_when_a_codec_is_useless(capsys, codec):
    plan(["pcie-4gpu", "--size", "80MB", "--compress", codec])
    said = capsys.readouterr().out
    assert f"{codec} is not worth it: it takes" in said
    assert "since codecs take longer than the links." in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--size", "1MB", "--compress", "auto"], "name a codec"),
        (["--size", "1MB", "--compress", "zip"], "no codec is called that"),
        (["--sizes", "4KB..1MB", "--compress", "int8"], "one --size"),
        (["--size", "1MB", "--collective", "broadcast", "--compress", "int8"], "of all_reduce, not of broadcast"),
    ],
)
def test_plan_refuses_what_it_can_not_compress(more, said):
    with pytest.raises(ConfigError, match=said):
        plan(["star:4", *more])


OPTIONS = {
    "batch_size": 256,
    "accumulate": 1,
    "lr": 0.2,
    "epochs": 1,
    "strategy": "sharded",
    "scale_batch": False,
    "lr_scaling": "none",
    "warmup_epochs": 0.0,
    "compress": "topk:0.1",
}
ASKED = Settings("lenet", "digits", None, OPTIONS)


def test_what_train_is_to_compress_is_checked_before_workers_start():
    ASKED.check(2)
    replace(ASKED, every=3).check(2)
    replace(ASKED, sync="bsp", checkpoints={"path": "x", "every": 2}).check(2)
    assert ASKED.title(2, 0) == "2 workers, auto, topk:0.1"
    for settings, said in [
        (replace(ASKED, fit={**OPTIONS, "compress": "zip"}), "no codec is called that"),
        (replace(ASKED, fit={**OPTIONS, "compress": "powersgd"}, sync="bsp"), "which servers can't"),
        (replace(ASKED, sync="ring"), "goes with sync='auto' alone"),
    ]:
        with pytest.raises(ConfigError, match=said):
            settings.check(2)
