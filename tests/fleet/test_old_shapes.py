"""Calls in the shape of Fluid and Fleet: taken where they can mean one thing, else refused with what to write."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from small_jobs import Given, batches, cluster, in_threads, small_model

import sparsefleet as sf
from sparsefleet.core import notes
from sparsefleet.core.errors import ConfigError
from sparsefleet.core.process_role import PROCESS_ROLE
from sparsefleet.fleet import DistributedStrategy, DistributeTranspiler, DistributeTranspilerConfig, Role
from sparsefleet.fleet.facade import Fleet
from sparsefleet.fleet.old_shapes import check_feeds_and_targets


@pytest.fixture(autouse=True)
def as_before():
    notes._told.clear()
    PROCESS_ROLE.forget()
    yield
    PROCESS_ROLE.forget()


def a_fleet(strategy=None) -> Fleet:
    fleet = Fleet()
    fleet.init(Role())
    fleet.distributed_optimizer(sf.optim.Adam(1e-2), strategy)
    return fleet


# --- the facade


def test_train_from_dataset_makes_a_trainer_and_takes_fluids_settings(tmp_path, capsys):
    fleet, model = a_fleet(), small_model()
    result = fleet.train_from_dataset(
        model, Given(batches(4)), fetch_list=[model.loss], fetch_info=["cost"], print_period=2, debug=False, thread=0
    )
    assert result.rows == 80
    assert capsys.readouterr().out.count("cost ") == 2
    fleet.train_from_dataset(model, Given(batches(4)), quiet=True)  # the same trainer goes on
    fleet.save_persistables(tmp_path / "a")
    assert sf.Checkpoint.open(tmp_path / "a").manifest.step == 8
    for settings, message in (
        ({"debug": True}, r"debug=True\): Trainer\(profile=True\)"),
        ({"scope": object()}, r"there are no scopes"),
    ):
        with pytest.raises(ConfigError, match=message):
            fleet.train_from_dataset(model, Given(batches(1)), **settings)


def test_saving_in_fluids_shape(tmp_path, caplog):
    fleet, model = a_fleet(), small_model()
    fleet.train_from_dataset(model, Given(batches(2)), quiet=True)
    exe = sf.fluid.Executor(sf.fluid.CPUPlace())
    fleet.save_persistables(exe, str(tmp_path / "a"))
    fleet.save_persistables(exe, tmp_path / "b", fleet.main_program)
    fleet.save_persistables(executor=exe, dirname=tmp_path / "c")
    for name in "abc":
        assert sf.Checkpoint.open(tmp_path / name).manifest.step == 2
    assert caplog.text.count("save_persistables needs no executor: write save_persistables(path)") == 1, "once"
    feeds = ["dense_input", *(f"C{i}" for i in range(1, 27))]
    fleet.save_inference_model(exe, str(tmp_path / "d"), feeds, ["predict"], format="checkpoint")
    assert "needs no feeds and targets" in caplog.text
    for arguments, message in (
        ((exe,), r"save_inference_model: where to\?"),
        ((exe, "p", feeds[:5], ["predict"]), r"feeds leave out C10, C11, .*a bundle takes all inputs"),
        ((exe, "p", feeds, ["a", "b"]), r"2 targets; a bundle answers the click probability"),
        ((exe, "p", feeds, ["a"], 5), r"1 arguments too many"),
        ((exe, "p", feeds, ["auc"]), r"the target 'auc' is no output of the model"),
        ((exe, 5), r"5 is not a path"),
    ):
        with pytest.raises(ConfigError, match=message):
            fleet.save_inference_model(*arguments)
    with pytest.raises(ConfigError, match=r"save_persistables: 1 arguments too many"):
        fleet.save_persistables(exe, "p", None, 4)


def test_an_inference_model_in_fluids_order_and_in_fleets(tmp_path):
    fluid, model = sf.fluid, small_model()
    fluid.optimizer.Adam(1e-2).minimize(model.loss)
    exe, feeds = fluid.Executor(fluid.CPUPlace()), ["dense_input", *(f"C{i}" for i in range(1, 27))]
    exe.train_from_dataset(program=fluid.default_main_program(), dataset=Given(batches(2)), quiet=True)
    fluid.io.save_inference_model(str(tmp_path / "a"), feeds, ["predict"], exe)
    fluid.io.save_inference_model(exe, str(tmp_path / "b"), feeds, ["predict"])
    fluid.io.save_inference_model(dirname=tmp_path / "c", feeded_var_names=feeds, target_vars=["predict"], executor=exe)
    for name in "abc":
        assert (tmp_path / name / "manifest.json").is_file()
    for arguments, message in (
        (("p", feeds[:5], ["predict"], exe), "feeds leave out C10, C11"),
        (("p", feeds, ["predict"], exe, 5), "1 arguments too many"),
        (("p", feeds, ["predict"], 5), "1 arguments too many"),
    ):
        with pytest.raises(ConfigError, match=message):
            fluid.io.save_inference_model(*arguments)


def test_feeds_and_targets_that_a_bundle_does_not_have_are_refused(tmp_path):
    fluid, model = sf.fluid, small_model()
    fluid.optimizer.Adam(1e-2).minimize(model.loss)
    exe, feeds = fluid.Executor(fluid.CPUPlace()), ["dense_input", *(f"C{i}" for i in range(1, 27))]
    exe.train_from_dataset(program=fluid.default_main_program(), dataset=Given(batches(2)), quiet=True)
    auc = fluid.data("auc")
    for given, targets, message in (
        (feeds[1:], ["predict"], "feeds leave out dense_input; a bundle takes all inputs"),
        ([*feeds[1:], "I1"], ["predict"], "feeds leave out I2, I3, .*, I13; a bundle"),
        ([*feeds, "foo"], ["predict"], "feeds have 'foo', which is no input of the data .*there are dense_input, C1, "),
        (feeds, ["nosuch"], "the target 'nosuch' is no output of the model: .* 'predict'"),
        (feeds, [auc], "the target 'auc' is no output of the model"),
        (feeds, [model.loss], "the target 'loss' is no output of the model"),
        (feeds, "auc", "the target 'auc' is no output of the model"),
    ):
        with pytest.raises(ConfigError, match=message):
            fluid.io.save_inference_model(str(tmp_path / "p"), given, targets, exe)
    assert not (tmp_path / "p").exists()
    declared = [fluid.data(name) for name in [*feeds, "label"]]  # a script's inputs have the label too
    fluid.io.save_inference_model(str(tmp_path / "a"), declared, ["predict"], exe, fluid.default_main_program())
    assert (tmp_path / "a" / "manifest.json").is_file()


def test_feeds_are_named_as_the_script_declared_them(tmp_path):
    names = [sf.fluid.data("numbers", [2], "float32"), sf.fluid.data("user", [1], "int64"), "label"]
    data = sf.PyReader(feed_list=names, generator=lambda: iter([([0.1, 0.2], [7], [1])] * 8), batch_size=4)
    schema = data.schema
    model = sf.CTRDNN(["user"], 2, sf.CTRDNNConfig(embedding_size=4, hidden=(4,)))
    for feeds in (["numbers", "user", "label"], ["dense_input", "user"], ["numbers1", "numbers2", "user"]):
        check_feeds_and_targets(model, schema, feeds, ["predict"])
    apart = sf.Schema(dense=tuple(map(sf.DenseFeature, ("price", "age"))), slots=(sf.Slot("user"),))
    check_feeds_and_targets(model, apart, ["price", "age", "user"], None)
    for given, feeds, message in (
        (schema, ["user"], "leave out dense_input;"),
        (schema, ["number", "user"], "feeds have 'number'"),
        (apart, ["age", "user"], "leave out dense_input|leave out price;"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_feeds_and_targets(model, given, feeds, None)


def test_targets_of_a_model_for_several_labels():
    class Two(torch.nn.Module):
        label_names = ("click", "buy")

        def __init__(self):
            super().__init__()
            self.embedding = sf.nn.SparseEmbedding("t", 4, ["user"])

    schema = sf.Schema(dense=(), slots=(sf.Slot("user"),), label="click", more_labels=(sf.Label("buy"),))
    for targets in (["predict"], ["click", "buy"], None):
        check_feeds_and_targets(Two(), schema, ["user", "click", "buy"], targets)
    for targets, message in (
        (["buy"], "'buy' is one of the model's labels, .*export --outputs buy"),
        (["buy", "auc"], "2 targets; a bundle answers the click probability of all labels, click, buy"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_feeds_and_targets(Two(), schema, None, targets)


def test_a_checkpoint_has_no_file_name(tmp_path):
    fluid, model = sf.fluid, small_model()
    fluid.optimizer.Adam(1e-2).minimize(model.loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.train_from_dataset(program=fluid.default_main_program(), dataset=Given(batches(2)), quiet=True)
    fluid.io.save_persistables(executor=exe, dirname=tmp_path / "a", main_program=None, filename=None)
    fluid.io.save_persistables(exe, tmp_path / "a", None, None)
    fluid.io.load_persistables(executor=exe, dirname=tmp_path / "a", main_program=None, filename=None)
    for call in (fluid.io.save_persistables, fluid.io.load_persistables):
        with pytest.raises(ConfigError, match=r"persistables\(filename='p'\): a checkpoint is a folder of files"):
            call(executor=exe, dirname=tmp_path / "a", filename="p")
    fleet, model = a_fleet(), small_model()
    fleet.train_from_dataset(model, Given(batches(2)), quiet=True)
    fleet.save_persistables(exe, tmp_path / "b", filename=None)
    with pytest.raises(ConfigError, match="filename='p'"):
        fleet.save_persistables(exe, tmp_path / "b", filename="p")


def test_a_server_is_told_how_it_starts_from_a_checkpoint():
    fleet = Fleet()
    fleet.init(Role.server(0, 1, ["127.0.0.1:1"]))
    fleet.distributed_optimizer(sf.optim.Adam(1e-2))
    with pytest.raises(ConfigError, match=r"this process is a server, .* by fleet\.init_server\(path\)"):
        fleet._trainer().load(small_model(), "anywhere")


def test_get_file_shard_of_too_few_files(tmp_path):
    class TwoTrainers:
        index, size = 1, 2

    util, files = sf.fleet.facade.Util(TwoTrainers), [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_text("1\n" * 10)
    assert util.get_file_shard(files) == util.get_file_shard([tmp_path]) == [str(files[1])]
    with pytest.raises(
        ConfigError, match=r"1 file\(s\) for 2 trainers, .* write fleet\.split_files\(files\), which cuts"
    ):
        util.get_file_shard(files[:1])


def test_minimize_says_which_model_is_trained(caplog):
    fleet, model = a_fleet(), small_model()
    fleet._optimizer.minimize(model.loss)
    assert PROCESS_ROLE.model is model
    assert "optimizer.minimize(loss) builds nothing here" in caplog.text
    sf.optim.SGD().minimize(model)
    assert PROCESS_ROLE.model is model

    class Own(torch.nn.Module):
        def loss(self, output, labels):
            return output.sum()

    own = Own()
    sf.optim.SGD().minimize(own.loss)
    assert PROCESS_ROLE.model is own
    with pytest.raises(ConfigError, match=r"minimize\(0\.5\): give it model\.loss"):
        sf.optim.Adam().minimize(0.5)


def test_a_trainer_of_a_place_takes_the_distributed_optimizer_and_prints_losses(capsys):
    with pytest.raises(ConfigError, match=r"there is none yet: call one of them before"):
        sf.Trainer(sf.fluid.CPUPlace())
    fleet, model = a_fleet(), small_model()
    trainer = sf.Trainer(sf.fluid.CPUPlace())
    assert fleet._optimizer.trainer is trainer
    result = trainer.fit(model, Given(batches(3)), epoch=2)
    assert result.steps == 6
    out = capsys.readouterr().out.splitlines()
    assert [line.rsplit(" ", 1)[0] for line in out] == [f"worker 0, step {n}, loss" for n in range(1, 7)]
    assert all(0 < float(line.rsplit(" ", 1)[1]) < 2 for line in out)
    trainer.fit(model, Given(batches(3)), quiet=True)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    with pytest.raises(ConfigError, match="epochs=3 and epoch=2 mean the same thing"):
        trainer.fit(model, Given(batches(1)), 3, epoch=2)
    with pytest.raises(ConfigError, match=r"write CPUPlace\(\)"):
        sf.fluid.CUDAPlace(0)


def test_fit_tells_how_it_goes_unless_quiet(capsys):
    trainer = sf.Trainer(sf.optim.Adam())
    trainer.fit(small_model(), Given(batches(2)))
    assert "epoch 1/1 done  40 rows" in capsys.readouterr().err
    sf.Trainer(sf.optim.Adam(), quiet=True).fit(small_model(), Given(batches(2)))
    sf.Trainer(sf.optim.Adam(), reporters=[]).fit(small_model(), Given(batches(2)))
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="who is to be told"):
        sf.Trainer(quiet=True, reporters=[sf.console_reporter()])


def test_init_server_endpoints_and_dir(monkeypatch):
    fleet = Fleet()
    with pytest.raises(ConfigError, match=r"is_collective=True\): here parameters are on servers"):
        fleet.init(is_collective=True)
    fleet.init(Role.worker(0, 2, ["127.0.0.1:1", "127.0.0.1:2"]))
    assert fleet.server_endpoints(to_string=True) == "127.0.0.1:1,127.0.0.1:2"
    with pytest.raises(ConfigError, match=r"worker_endpoints\(\): trainers listen nowhere here"):
        fleet.worker_endpoints()
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:6000,10.0.0.2:6000")
    assert fleet.worker_endpoints() == ["10.0.0.1:6000", "10.0.0.2:6000"]
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:6000")
    with pytest.raises(ConfigError, match="names 1 trainers, and the job has 2"):
        fleet.worker_endpoints()
    named = dir(sf.fleet)
    assert {"init", "util", "worker_endpoints", "DistributedStrategy", "save_persistables", "role_maker"} <= set(named)
    for name in named:
        assert getattr(sf.fleet, name) is not None
    public = {name for name in vars(Fleet) if not name.startswith("_")} | {"util"}
    assert public == set(named) - set(sf.fleet.__all__), "dir(fleet) and the facade agree"
    with pytest.raises(AttributeError, match=r"fleet has no 'minimise'; dir\(fleet\) lists"):
        sf.fleet.minimise  # noqa: B018


def test_util_in_one_process_and_in_several():
    alone = a_fleet().util
    assert alone.all_reduce(3) == 3
    assert alone.all_gather([1, 2])[0].tolist() == [1, 2]
    assert alone.get_file_shard([__file__]) == [__file__]
    with cluster(1) as job:
        results: dict[int, list[object]] = {}

        def work(worker: int) -> None:
            optimizer = job.job(sf.optim.SGD(), DistributedStrategy(), worker, 2)
            util = sf.fleet.facade.Util(lambda: optimizer.workplace.crew)
            results[worker] = [
                util.all_reduce(worker + 1),
                util.all_reduce(np.array([worker, 5.5]), "max").tolist(),
                util.all_reduce([1, worker], mode="min").tolist(),
                util.all_gather(0.5 * worker),
            ]
            util.barrier()
            with pytest.raises(ConfigError, match="all trainers must give the same shape"):
                util.all_reduce(np.zeros(1 + worker))

        in_threads([lambda worker=worker: work(worker) for worker in range(2)])
    assert results[0] == results[1] == [3, [1, 5.5], [1, 0], [0.0, 0.5]]
    for arguments, message in (((1, "mean"), "choose sum, max, min"), (("text",), "give a number")):
        with pytest.raises(ConfigError, match=message):
            alone.all_reduce(*arguments)
    with pytest.raises(ConfigError, match="write 'worker'"):
        alone.barrier("server")


# --- DistributeTranspilerConfig


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "sync"),
        ({"sync_mode": True}, "sync"),
        ({"sync_mode": False}, "async"),
        ({"sync_mode": False, "runtime_split_send_recv": True}, "async"),
        ({"sync_mode": False, "half_async": True}, "half_async"),
        ({"geo_sgd_mode": True}, "geo"),
        ({"sync_mode": False, "geo_sgd_mode": True, "geo_sgd_need_push_nums": 400}, "geo"),
    ],
)
def test_a_transpiler_config_is_a_strategy(settings, mode):
    config = DistributeTranspilerConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    resolved = config.resolved()
    assert resolved.mode == mode
    if mode == "geo":
        assert resolved.k_steps == settings.get("geo_sgd_need_push_nums", 100)
    fleet = Fleet()
    fleet.init(Role())
    assert fleet.distributed_optimizer(sf.optim.SGD(), config).strategy.mode == mode


def test_a_transpiler_config_that_contradicts_itself(caplog):
    config = DistributeTranspilerConfig()
    with pytest.raises(ConfigError, match=r"no setting sync_mod here; did you mean sync_mode\?"):
        config.sync_mod = True
    with pytest.raises(ConfigError, match="sync_mode=1 must be True or False"):
        config.sync_mode = 1
    with pytest.raises(ConfigError, match="geo_sgd_need_push_nums=0 must be a whole number, 1 or above"):
        config.geo_sgd_need_push_nums = 0
    config.slice_var_up = False
    config.wait_port = True
    assert "wait_port is not needed: trainers wait" in caplog.text
    assert "slice_var_up is not needed" in caplog.text
    config.geo_sgd_need_push_nums = 5
    with pytest.raises(ConfigError, match="belongs to geo, and the mode is sync"):
        config.resolved()
    config.geo_sgd_mode = config.sync_mode = True
    with pytest.raises(ConfigError, match="asks for geo and sync at once"):
        config.resolved()
    with pytest.raises(ConfigError, match=r"there are no programs here. Write fleet.init\(\)"):
        DistributeTranspiler(config).transpile(0, pservers="127.0.0.1:1", trainers=2, sync_mode=True)
    fleet = Fleet()
    fleet.init(Role())
    with pytest.raises(ConfigError, match=r"strategy=\{'use_cvm': True\}; give fleet.DistributedStrategy"):
        fleet.distributed_optimizer(sf.optim.SGD(), {"use_cvm": True})
    with pytest.raises(ConfigError, match=r"give it a rule of sparsefleet\.optim"):
        fleet.distributed_optimizer("adam")


# --- fluid


def test_a_local_script_of_fluids_shape(tmp_path, capsys, caplog):
    fluid, model = sf.fluid, small_model()
    caplog.set_level(logging.WARNING)
    optimizer = fluid.optimizer.Adam(1e-2)
    optimizer.minimize(model.loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.train_from_dataset(
            program=fluid.default_main_program(), dataset=Given(batches(4)), fetch_list=["auc"], print_period=4
        )
    fluid.io.save_persistables(executor=exe, dirname=tmp_path / "a", main_program=fluid.default_main_program())
    assert sf.Checkpoint.open(tmp_path / "a").manifest.step == 8, "one trainer for both calls"
    assert capsys.readouterr().out.count("auc ") == 2
    assert "exe.run(startup_program) is not needed" in caplog.text
    expected = exe.infer_from_dataset(program=model, dataset=Given(batches(4)))

    PROCESS_ROLE.forget()
    with fluid.unique_name.guard():
        again = small_model(seed=5)
    scoring = fluid.Executor()
    fluid.io.load_persistables(scoring, tmp_path / "a", again)
    assert scoring.infer_from_dataset(again, Given(batches(4)), fetch_list=["auc"]) == expected
    with pytest.raises(ConfigError, match=r"which model\? main_program stands for the one whose loss is minimized"):
        scoring.infer_from_dataset(fluid.default_main_program(), Given(batches(4)))
    with pytest.raises(ConfigError, match="there is no optimizer yet"):
        scoring.train_from_dataset(again, Given(batches(1)))
    with pytest.raises(ConfigError, match="give a dataset"):
        scoring.infer_from_dataset(again, "files")
    with pytest.raises(ConfigError, match="no programs to run step by step"):
        scoring.run(fluid.default_main_program(), feed={})


def test_what_is_not_in_fluid_says_what_to_write():
    fluid = sf.fluid
    for look, message in (
        (lambda: fluid.layers.fc(input=1, size=400), r"fluid.layers.fc is not here.*DenseTower"),
        (lambda: fluid.layers.embedding, "SparseEmbedding"),
        (lambda: fluid.layers.auc, r"fetch_list=\['auc', 'batch_auc'\]"),
        (lambda: fluid.layers.softmax, "torch"),
        (lambda: fluid.framework.Program(), "a model is a torch.nn.Module"),
        (lambda: fluid.global_scope(), "evaluation starts its metrics from zero"),
        (lambda: fluid.DataFeeder, "sf.Feeder"),
        (lambda: fluid.ParamAttr, "SparseEmbedding"),
        (lambda: fluid.optimizer.Momentum, "choose SGD, Adagrad"),
        (lambda: fluid.regularizer.L2Decay(0.1), r"weight_decay=c\): c of L2Decay\(c\) where the loss was a sum"),
        (lambda: fluid.clip.GradientClipByGlobalNorm(1.0), r"DistributedStrategy\(clip_norm=…\)"),
        (lambda: fluid.layers.exponential_decay(0.1, 10, 0.9), r"schedule=sf\.optim\.schedule\.ExponentialDecay\("),
        (lambda: fluid.Executor("cpu"), r"write Executor\(CPUPlace\(\)\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            look()
    for look, message in (
        (lambda: fluid.io.load_params, r"trainer\.load\(model, path, values_only=True\)"),
        (lambda: fluid.io.save_params, "save_persistables"),
        (lambda: fluid.io.load_inference_model, r"sf\.Predictor\(path\)"),
        (lambda: fluid.io.DataLoader, r"fluid\.io\.PyReader\(feed_list=inputs"),
        (lambda: fluid.save, r"fluid\.io\.save_persistables"),
        (lambda: fluid.load, r"fluid\.io\.load_persistables"),
        (lambda: sf.fleet.load_model, r"fleet\.init_server\(path\)"),
        (lambda: sf.fleet.load_persistables, r"trainer\.load\(model, path\)"),
        (lambda: sf.fleet.save, r"fleet\.save_persistables\(path\)"),
        (lambda: sf.fleet.shrink, "min_seen=N"),
        (lambda: sf.fleet.StrategyFactory.create_sync_strategy(), r"DistributedStrategy\(mode='sync'\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            look()
    assert not hasattr(fluid, "no_such_name")
    assert not hasattr(fluid.io, "no_such_name")
    assert fluid.layers.data("C1", [1], "int64", 1).name == fluid.data("C1").name == "C1"
    assert fluid.optimizer.SGDOptimizer(0.5) == sf.optim.SGD(0.5)
    assert (fluid.initializer.Uniform().numbers, fluid.initializer.Normal(scale=2.0).numbers) == ((-1, 1), (0, 2))
    for name in dir(fluid):
        assert getattr(fluid, name) is not None


def test_optimizers_with_fluids_arguments(caplog):
    fluid, optim = sf.fluid, sf.optim
    nothing = {"parameter_list": None, "regularization": None, "grad_clip": None, "name": None}
    assert fluid.optimizer.SGD(0.1, **nothing) == optim.SGD(0.1)
    assert fluid.optimizer.Adagrad(0.1, 1e-6, **nothing) == optim.Adagrad(0.1, 1e-6)
    assert fluid.optimizer.Adam(0.1, 0.8, 0.99, 1e-6, **nothing) == optim.Adam(0.1, 0.8, 0.99, 1e-6)
    assert fluid.optimizer.Ftrl(learning_rate=0.1, l1=0.2, l2=0.3, **nothing) == optim.FTRL(0.1, 0.2, 0.6, beta=0.0)
    assert fluid.optimizer.Adam() == optim.Adam(1e-3), "what is left out is as in Fluid"
    assert fluid.optimizer.Adagrad(0.1) == optim.Adagrad(0.1, 1e-6)
    assert fluid.optimizer.Adam(0.1, weight_decay=0.5, exact=True) == optim.Adam(0.1, weight_decay=0.5, exact=True)
    assert caplog.text == "", "nothing to note"

    for made, same, noted in (
        (
            fluid.optimizer.Adam(0.1, lazy_mode=True),
            optim.Adam(0.1),
            "Adam(lazy_mode=True) is not needed: a step moves only",
        ),
        (fluid.optimizer.AdamOptimizer(0.1, name="adam"), optim.Adam(0.1), "fluid.optimizer.Adam needs no name"),
        (
            fluid.optimizer.Adagrad(0.1, initial_accumulator_value=0.5),
            optim.Adagrad(0.1, 1e-6, initial_accumulator=0.5),
            "the setting is called initial_accumulator here",
        ),
        (fluid.optimizer.Ftrl(0.1, lr_power=-0.5), optim.FTRL(0.1, beta=0.0), "Ftrl(lr_power=-0.5) is not needed"),
    ):
        assert made == same
        assert noted in caplog.text
    for rule, given, settings, message in (
        ("Adam", (), {"lazy_mode": False}, r"lazy_mode=False; .* write exact=True"),
        ("Adam", (), {"lazy_mode": True, "exact": True}, "contradict each other"),
        ("Adam", (), {"regularization": 0.1}, r"write weight_decay=c for L2Decay\(c\)"),
        ("Ftrl", (), {"regularization": 0.1}, "l1 and l2 of its own"),
        ("SGD", (), {"parameter_list": []}, r"leave it out, and call parameter\.requires_grad_\(False\)"),
        ("Adagrad", (), {"grad_clip": 1}, r"DistributedStrategy\(clip_norm=…\)"),
        ("Ftrl", (), {"lr_power": -0.4}, "lr_power=-0.4; here rates fall with the root"),
        ("Adagrad", (), {"initial_accumulator_value": 1.0, "initial_accumulator": 1.0}, "mean the same thing"),
        ("Adam", (1e-3, 0.9, 0.99, 1e-8, None), {}, "5 arguments by position; give those after epsilon by name"),
        ("SGD", ("1e-4",), {}, "learning_rate='1e-4' must be a number, not a text: write float"),
        ("Adam", (), {"epsilon": "1e-6"}, "epsilon='1e-6' must be a number"),
        ("SGD", (1e-3,), {"learning_rate": 1.0}, "learning_rate is given twice"),
        ("SGD", (), {"momentum": 0.9}, "no setting momentum; there are learning_rate, schedule, exact, weight_decay"),
    ):
        with pytest.raises(ConfigError, match=message):
            getattr(fluid.optimizer, rule)(*given, **settings)


def test_inputs_of_a_dataset_declared_with_layers_data():
    fluid = sf.fluid
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var(
        [
            fluid.layers.data("dense_input", [13]),
            fluid.layers.data("C1", [1], "int64", 1),
            fluid.data("label", [1], "int64"),
        ]
    )
    assert (len(dataset.schema.dense), dataset.schema.slot_names) == (13, ("C1",))


def test_fleets_names_are_not_hidden_by_its_modules():
    """A module of the package that is imported becomes an attribute of it, before `__getattr__` is asked."""
    import pkgutil

    modules = {module.name for module in pkgutil.iter_modules(sf.fleet.__path__)}
    assert not modules & set(dir(sf.fleet))
    assert sf.fleet.util is sf.fleet.facade.FLEET.util
