"""The role that the environment gives, and the complaints about an environment that gives none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sparsefleet.core.errors import ConfigError
from sparsefleet.fleet.roles import PaddleCloudRoleMaker, Role, UserDefinedRoleMaker, parse_endpoint

LIST = "127.0.0.1:36011,127.0.0.1:36012"
COMMON = {"PADDLE_TRAINERS_NUM": "2", "PADDLE_PSERVERS_IP_PORT_LIST": LIST}
SERVER = {**COMMON, "TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "36012", "POD_IP": "127.0.0.1"}
TRAINER = {**COMMON, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1"}


def test_nothing_set_is_one_process() -> None:
    role = Role.from_environment({"PATH": "/bin", "PADDLE_PORT": ""})
    assert role == Role("single", 0, 1, (), None)
    assert role.is_worker
    assert role.is_first_worker
    assert not role.is_server
    assert role.server_num == 0


def test_pod_ip_alone_is_what_kubernetes_sets_and_no_role() -> None:
    assert Role.from_environment({"POD_IP": "10.0.0.7"}).kind == "single"


def test_the_seeds_variables_of_a_server() -> None:
    role = Role.from_environment(SERVER)
    assert role == Role("server", 1, 2, tuple(LIST.split(",")), "127.0.0.1:36012")
    assert role.is_server
    assert not role.is_worker
    assert not role.is_first_worker
    assert str(role) == "server 1"


def test_the_seeds_variables_of_a_trainer() -> None:
    role = Role.from_environment(TRAINER)
    assert role == Role("worker", 1, 2, tuple(LIST.split(",")), None)
    assert role.is_worker
    assert not role.is_first_worker
    assert role.server_num == 2


@pytest.mark.parametrize(
    "role",
    [
        Role(),
        Role.server(0, 3, ["[::1]:5000", "host:6000"]),
        Role.server(1, 3, ["[::1]:5000", "host:6000"]),
        Role.worker(2, 3, ["[::1]:5000", "host:6000"]),
    ],
)
def test_environment_and_back(role: Role) -> None:
    assert Role.from_environment(role.environment()) == role


@pytest.mark.parametrize(
    ("base", "change", "named"),
    [
        (TRAINER, {"PADDLE_TRAINER_ID": "5"}, ["PADDLE_TRAINER_ID=5", "PADDLE_TRAINERS_NUM=2", "0 to 1"]),
        (TRAINER, {"PADDLE_TRAINER_ID": "-1"}, ["PADDLE_TRAINER_ID=-1", "0 to 1"]),
        (TRAINER, {"PADDLE_TRAINER_ID": "one"}, ["PADDLE_TRAINER_ID='one'", "whole number"]),
        (TRAINER, {"PADDLE_TRAINER_ID": None}, ["PADDLE_TRAINER_ID is not set", "TRAINING_ROLE='TRAINER'"]),
        (TRAINER, {"PADDLE_TRAINERS_NUM": None}, ["PADDLE_TRAINERS_NUM is not set"]),
        (TRAINER, {"PADDLE_TRAINERS_NUM": "0"}, ["PADDLE_TRAINERS_NUM=0", "at least 1"]),
        (TRAINER, {"PADDLE_TRAINERS_NUM": "2.5"}, ["PADDLE_TRAINERS_NUM='2.5'", "whole number"]),
        (TRAINER, {"TRAINING_ROLE": None}, ["TRAINING_ROLE is not set", "PSERVER or TRAINER"]),
        (TRAINER, {"TRAINING_ROLE": "WORKER"}, ["TRAINING_ROLE='WORKER'", "PSERVER or TRAINER"]),
        (TRAINER, {"PADDLE_PSERVERS_IP_PORT_LIST": None}, ["PADDLE_PSERVERS_IP_PORT_LIST is not set"]),
        (TRAINER, {"PADDLE_PSERVERS_IP_PORT_LIST": "a"}, ["PADDLE_PSERVERS_IP_PORT_LIST: 'a'", "host:port"]),
        (TRAINER, {"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,,b:2"}, ["PADDLE_PSERVERS_IP_PORT_LIST: ''"]),
        (TRAINER, {"PADDLE_PSERVERS_IP_PORT_LIST": "a:0"}, ["'a:0'", "1 to 65535"]),
        (TRAINER, {"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b:2,a:1"}, ["a:1 stands there more than once"]),
        (SERVER, {"PADDLE_PORT": "36099"}, ["127.0.0.1:36099", "PADDLE_PORT", "POD_IP", LIST]),
        (SERVER, {"PADDLE_PORT": "http"}, ["PADDLE_PORT: 'http'", "1 to 65535"]),
        (SERVER, {"PADDLE_PORT": None}, ["PADDLE_PORT is not set"]),
        (SERVER, {"POD_IP": None}, ["POD_IP is not set"]),
        (SERVER, {"POD_IP": "localhost"}, ["localhost:36012", "not in PADDLE_PSERVERS_IP_PORT_LIST"]),
    ],
)
def test_what_does_not_fit_is_named(base: dict[str, str], change: dict[str, str | None], named: list[str]) -> None:
    environment = {name: value for name, value in {**base, **change}.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        Role.from_environment(environment)
    for part in named:
        assert part in str(caught.value)


def test_paddle_cloud_role_maker_reads_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TRAINER.items():
        monkeypatch.setenv(name, value)
    assert PaddleCloudRoleMaker() == Role.from_environment(TRAINER)


def test_user_defined_role_maker() -> None:
    endpoints = LIST.split(",")
    assert UserDefinedRoleMaker(1, Role.SERVER, 2, endpoints) == Role.from_environment(SERVER)
    assert UserDefinedRoleMaker(current_id=1, role="WORKER", worker_num=2, server_endpoints=endpoints) == (
        Role.from_environment(TRAINER)
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((2, "worker", 2, ["a:1"]), "worker index 2 with 2 workers; allowed is 0 to 1"),
        ((1, "server", 2, ["a:1"]), "server index 1 with 1 servers; allowed is 0 to 0"),
        ((0, "trainer", 2, ["a:1"]), "role='trainer'"),
        ((0, "worker", 2, []), "server_endpoints is empty"),
        ((0, "worker", 2, "a:1"), "must be a list"),
        (("0", "worker", 2, ["a:1"]), "current_id='0'"),
        ((0, "worker", 0, ["a:1"]), "worker_num=0"),
    ],
)
def test_user_defined_role_maker_refuses(arguments: tuple, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        UserDefinedRoleMaker(*arguments)
    assert named in str(caught.value)


def test_a_role_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="current_endpoint='b:2' of server 0"):
        Role("server", 0, 1, ("a:1", "b:2"), "b:2")
    with pytest.raises(ConfigError, match="a single process has"):
        Role("single", 0, 2)


def test_endpoints() -> None:
    assert parse_endpoint("x", "[fe80::1]:80") == ("fe80::1", 80)
    with pytest.raises(ConfigError, match="x: 'fe80::1:80' is not an address"):
        parse_endpoint("x", "fe80::1:80")


@pytest.mark.parametrize("modules", ["sparsefleet.fleet.roles", "sparsefleet.cli.train, sparsefleet.fleet.server_life"])
def test_reading_a_role_and_being_a_server_need_no_torch(modules: str) -> None:
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
