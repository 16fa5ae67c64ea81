"""Calls as other libraries have them, and values of the wrong kind: one line that says what to write."""

import inspect

import pytest
import torch
from torch import nn

import gradtide
from gradtide.errors import ConfigError, DataError, OutputError
from gradtide.train.arguments import EVALUATE, FIT

X, Y = torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)
ADAM = torch.optim.Adam


def model():
    return nn.Linear(3, 2)


FOREIGN = {
    "fit(model(), X, Y)": "data is one argument: fit(model, (x, y), validation=(xv, yv)), or fit(model, loader)",
    "fit(model(), (X, Y), validation_data=(X, Y))": "there is no validation_data=; it is called validation=",
    "fit(model(), (X, Y), max_epochs=3)": "there is no max_epochs=; it is called epochs=",
    "fit(model(), (X, Y), learning_rate=3)": "there is no learning_rate=; it is called lr=",
    "fit(model(), (X, Y), validaton=3)": "there is no validaton= (did you mean validation=?)",
    "fit(model(), (X, Y), qqq=3)": "there is no qqq=; its arguments are model, train_data, validation,",
    "fit(model(), (X, Y), epochs='3')": "epochs='3'; give a whole number",
    "fit(model(), (X, Y), epochs=1.5)": "epochs=1.5; give a whole number",
    "fit(model(), (X, Y), seed=None)": "seed=None; give a whole number",
    "fit(model(), (X, Y), lr='0.1')": "lr='0.1'; give a number",
    "fit(model(), (X, Y), callbacks=print)": "callbacks= is a list; say callbacks=[...]",
    "fit(model(), (X, Y), checkpoints='x')": "say checkpoints=gradtide.Checkpoints('x', every=100)",
    "fit(model(), (X, Y), optimizer='adamw', lr=0.1, betas=(0, 0), weight_decay=0.2)": "there is no betas=; say "
    "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.2, betas=(0, 0))",
    "fit(model(), (X, Y), momentum=0.9)": "say optimizer=lambda parameters: torch.optim.SGD(parameters, momentum=0.9)",
    "fit(model(), (X, Y), momentum=0.9, optimizer=ADAM)": "nor has torch.optim.Adam such an option: leave it out",
    "fit(net := model(), (X, Y), nesterov=True, optimizer=ADAM(net.parameters()))": "give it to the Adam that you made",
    "fit(model(), (X, Y), weight_decay=1, optimizer=lambda p: ADAM(p))": "put it into your optimizer= function",
    "fit(nn.Linear, (X, Y))": "the model is the class Linear; make one: Linear(...)",
    "fit((X, Y), model())": "the model is a tuple; the first argument is a torch.nn.Module, then the data",
    "evaluate(model(), X, y=Y)": "evaluate: there is no y=; data is one argument, behind the model",
    "evaluate(model(), 3)": "can't read batches from int; pass (inputs, targets) as tensors or arrays, a Dataset",
    "evaluate(model(), X, num_workers=3)": "it is an argument of a DataLoader; more processes that run",
    "predict(model(), 'x')": "can't read batches from str; pass inputs as tensors or arrays",
    "evaluate(nn.Linear, (X, Y))": "the model is the class Linear",
    "DataParallel(model(), device_ids=[0])": "DataParallel: there is no device_ids=; move the model to its device",
    "DataParallel(model(), None, 'auto', 3)": "too many arguments without a name",
    "shard([], batch_size=3)": "shard: there is no batch_size=; it belongs to the DataLoader that shard is given",
    "connect(host='a')": "connect: there is no host=; the address is one argument",
    "fit(model(), (X, Y), sync='rnig')": "no strategy is called 'rnig' (did you mean ring?); there are auto,",
    "DataParallel(net := model(), ADAM(net.parameters()), 'rnig')": "no strategy is called 'rnig' (did you mean ring?)",
    "EarlyStopping(monitor='val_loss')": "EarlyStopping: there is no monitor=; it is called watch=",
    "EarlyStopping(min_delta=1)": "EarlyStopping: there is no min_delta=; it is called at_least=",
    "BestModel(filepath='x')": "BestModel: there is no filepath=; it is called path=",
    "local_servers(num_servers=2)": "local_servers: there is no num_servers=; say local_servers(2)",
}


@pytest.mark.quick
@pytest.mark.parametrize(("call", "line"), FOREIGN.items())
def test_a_call_as_another_library_has_it_is_refused_with_what_to_write(call, line):
    with pytest.raises((ConfigError, DataError)) as refused:
        eval(f"gradtide.{call}")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_name_of_ours_is_taken_for_another_librarys():
    for function, table in ((gradtide.fit, FIT), (gradtide.evaluate, EVALUATE)):
        foreign = {name for names in table for name in names.split()}
        assert not foreign & {*inspect.signature(function).parameters}


def test_a_torch_device_and_an_optimizer_of_either_kind_are_taken():
    mine = model()
    gradtide.fit(mine, (X, Y), devices=torch.device("cpu"), optimizer=ADAM(mine.parameters()))
    gradtide.fit(model(), (X, Y), optimizer=ADAM)


def test_a_model_that_cannot_be_written_is_one_line():
    best = gradtide.BestModel("/proc/none/best.safetensors", "loss")
    with pytest.raises(OutputError, match=r"can't write the model to /proc/none/best.*; name another file"):
        gradtide.fit(model(), (X, Y), callbacks=[best])
