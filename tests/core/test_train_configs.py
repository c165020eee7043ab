"""parse_train_configs: the command line before the environment, that before the file, that before defaults."""

from __future__ import annotations

import pytest

import sparsefleet as sf
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.train_configs import PREFIX


def test_where_settings_come_from(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text('lr = 1\nbatch_size = 200\nmode = "geo"\nepochs = 3\n')
    environment = {f"{PREFIX}BATCH_SIZE": "300", f"{PREFIX}CONFIG": str(file), "HOME": "/"}
    configs = sf.parse_train_configs(["--epochs", "4", "--test-data", "t"], environment)
    assert configs == sf.TrainConfigs(lr=1.0, batch_size=300, epochs=4, mode="geo", test_data="t")
    assert type(configs.lr) is float
    assert sf.parse_train_configs([], {}) == sf.TrainConfigs()
    assert sf.parse_train_configs(["--config", str(file)], {}).epochs == 3


def test_help_and_mistakes(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        sf.parse_train_configs(["--help"], {})
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "samples in a batch (1000)" in shown
    assert f"{PREFIX}BATCH_SIZE" in shown
    file = tmp_path / "train.toml"
    for text, message in (
        ("batch_sise = 3", r"train.toml: batch_sise is no setting; did you mean batch_size\?"),
        ('batch_size = "3"', "batch_size='3' must be a whole number"),
        ("epochs = true", "epochs=True must be a whole number"),
        ("lr =", "not TOML"),
        ("batch_size = 0", "batch_size=0 must be 1 or above"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            sf.parse_train_configs(["--config", str(file)], {})
    for environment, message in (
        ({f"{PREFIX}EPOCHS": "two"}, "EPOCHS='two' must be a whole number"),
        ({f"{PREFIX}EPOCH": "2"}, "EPOCH is no setting; did you mean epochs"),
        ({f"{PREFIX}CONFIG": "nowhere"}, "nowhere: cannot be read"),
        ({f"{PREFIX}MODE": "fast"}, "mode='fast' is not a mode"),
    ):
        with pytest.raises(ConfigError, match=message):
            sf.parse_train_configs([], environment)
    with pytest.raises(SystemExit):
        sf.parse_train_configs(["--epochs", "x"], {})
