"""Small models of every shape that people train, made of modules whose times are known (naps.py).

ZOO[name]() -> (model, run); run() makes the forwards and backwards of one step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import naps
import torch
from naps import Nap, nap
from torch import nn
from torch.utils.checkpoint import checkpoint

Case = tuple[nn.Module, Callable[[], object]]
ZOO: dict[str, Callable[[], Case]] = {}


class Does(nn.Module):
    """Its forward is the function that it was given, its children go by their keywords."""

    def __init__(self, does: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.does = does
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.does(self, *args, **kwargs)


@dataclass
class Plain:
    hidden: Any
    extra: Any = None


@dataclass
class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As transformers has it: a dataclass that is a dict of its fields."""

    hidden: Any = None
    extra: Any = None

    def __post_init__(self) -> None:
        self.update(hidden=self.hidden, extra=self.extra)


def longer(x: Any) -> Any:
    """x, after more of autograd's nodes than the taps walk through to find where a module began."""
    for _ in range(10):
        x = x + 0
    return x


def data(needs_gradient: bool = False) -> Any:
    return torch.ones(3, requires_grad=needs_gradient)


def case(make: Callable[[], Any]) -> Callable[[], Any]:
    """A model alone is run on data that needs no gradient."""

    def made() -> Case:
        model = make()
        return model if isinstance(model, tuple) else (model, lambda: model(data()).sum().backward())

    ZOO[make.__name__] = made
    return make


@case
def chain() -> Any:
    return nn.Sequential(Nap(1, 2), Nap(2, 3), Nap(3, 4))


@case
def own_time_before_between_and_after_children() -> Any:
    def does(self: Any, x: Any) -> Any:
        x = self.first(nap(self, x, 1, 5))
        return nap(self, self.second(nap(self, x, 1, 6)), 1, 7)

    return nn.Sequential(Nap(1, 3), Does(does, first=Nap(1, 4), second=Nap(1, 9)), Nap(1, 2))


@case
def parallel_branches_and_a_residual() -> Any:
    def does(self: Any, x: Any) -> Any:
        return self.o(torch.relu(self.q(x) + self.k(x) + self.v(x))) + x

    return nn.Sequential(Nap(1, 3), Does(does, q=Nap(1, 4), k=Nap(1, 6), v=Nap(1, 8), o=Nap(1, 2)), Nap(1, 7))


@case
def skip_over_many() -> Any:
    def does(self: Any, x: Any) -> Any:
        a = self.a(x)
        return self.d(torch.cat([self.c(self.b(a)), a]))

    return Does(does, a=Nap(1, 3), b=Nap(1, 4), c=Nap(1, 5), d=Nap(1, 6))


@case
def in_place_operations_and_views() -> Any:
    last = Does(lambda self, x: nap(self, x, 1, 3).mul_(2))
    view = Does(lambda self, x: x.view(1, 3))
    relu, flat = nn.ReLU(inplace=True), nn.Flatten(0)
    return nn.Sequential(Nap(1, 3), relu, Nap(1, 4), flat, Nap(1, 5), view, nn.ReLU(inplace=True), last)


@case
def linears_of_three_dimensions() -> Any:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.LayerNorm(3), Nap(1, 3), nn.Linear(3, 3))
    return model, lambda: model(torch.ones(2, 2, 3)).pow(2).sum().backward()


@case
def a_lists_of_features() -> Any:
    def does(self: Any, x: Any) -> Any:
        a = self.a(x)
        b = self.b(a)
        return [a, b, self.c(b)]

    features = Does(does, a=Nap(1, 3), b=Nap(1, 4), c=Nap(1, 5))
    return Does(lambda self, x: sum(self.features(x)), features=features)


@case
def hidden_states_of_all_layers() -> Any:
    def does(self: Any, x: Any) -> Any:
        hidden = [x]
        for layer in (self.a, self.b):
            hidden.append(layer(hidden[-1]))
        return ModelOutput(self.head(hidden[-1]), (*hidden, None))

    a, b = (Does(lambda self, x: nap(self, x + self.a(x), 1, 6), a=Nap(1, 3)) for _ in range(2))
    model = Does(does, a=a, b=b, head=Nap(1, 2))
    return model, lambda: model(data())["hidden"].sum().backward()


@case
def a_child_after_the_output() -> Any:
    def does(self: Any, x: Any) -> Any:
        y = self.a(x)
        self.aside = self.b(y)
        return y

    inner = Does(does, a=Nap(1, 3), b=Nap(1, 4))
    return Does(lambda self, x: self.inner(x) + self.inner.aside, inner=inner)


def holding(shape: Callable[[Any], Any], take: Callable[[Any], Any]) -> Case:
    inner = Does(lambda self, x: shape(nap(self, x, 1, 5)))
    model = Does(lambda self, x: nap(self, take(self.inner(self.leaf(x))), 1, 4), inner=inner, leaf=Nap())
    return model, lambda: model(data()).sum().backward()


@case
def a_tuple_with_none() -> Any:
    return holding(lambda y: (y, None, (y * 2,)), lambda held: held[0] + held[2][0])


@case
def a_dict() -> Any:
    return holding(lambda y: {"y": y, "n": None}, lambda held: held["y"])


@case
def a_dataclass() -> Any:
    return holding(lambda y: Plain(y), lambda held: held.hidden)


@case
def a_dataclass_that_is_a_dict() -> Any:
    return holding(lambda y: ModelOutput(y, (y,)), lambda held: held["hidden"])


@case
def arguments_by_keyword_only() -> Any:
    def attention() -> nn.Module:
        return Does(lambda self, *, hidden, mask=None: nap(self, longer(self.a(hidden)), 1, 2), a=Nap(1, 3))

    def does(self: Any, x: Any) -> Any:
        x = self.b(mask=None, hidden=nap(self, x, 1, 7))
        return self.c(hidden=nap(self, x, 1, 8))

    model = Does(does, b=attention(), c=attention())
    return model, lambda: model(data(True)).sum().backward()


@case
def arguments_in_a_list() -> Any:
    def does(self: Any, x: Any) -> Any:
        return self.c([nap(self, self.a(x), 1, 2), nap(self, self.b(x), 1, 3)])

    return Does(does, a=Nap(), b=Nap(), c=Does(lambda self, each: nap(self, longer(sum(each)), 1, 5)))


@case
def the_newest_of_several_arguments() -> Any:
    def does(self: Any, x: Any) -> Any:
        a = self.a(x)
        return self.c(torch.ones(3), a, nap(self, a, 1, 9))

    model = Does(does, a=Nap(), c=Does(lambda self, mask, a, b: nap(self, longer(mask * a * b), 1, 5)))
    return model, lambda: model(data(True)).sum().backward()


@case
def first_layers_whose_input_needs_no_gradient() -> Any:
    def does(self: Any, x: Any) -> Any:
        words = nap(self, self.words(torch.ones(3)), 1, 7)
        return words + self.places(torch.ones(3))

    return Does(does, words=Nap(1, 3), places=Nap(1, 4))


@case
def a_first_layer_of_two_branches() -> Any:
    """What it made first is not what the last argument of its last operation leads to."""
    model = Does(lambda self, x: nap(self, x * self.slow, 1, 4) + self.quick * 2)
    model.slow, model.quick = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    return nn.Sequential(model, Nap(1, 5))


@case
def first_layers_inside_others_and_what_follows_them() -> Any:
    """All begin their graphs with the same node, and what comes behind it is time of the pass."""
    inner = Does(lambda self, x: nap(self, x @ self.weight.t(), 1, 3))
    inner.weight = nn.Parameter(torch.eye(3))
    around = Does(
        lambda self, x: nap(self, longer(self.inner(x)), 1, 4), inner=Does(lambda self, x: self.a(x), a=inner)
    )
    model = nn.Sequential(around, Nap(1, 5))
    inner.weight.register_post_accumulate_grad_hook(lambda weight: naps.current.nap(model, "backward", 6))
    return model


@case
def nothing_of_their_own() -> Any:
    nested = Does(lambda self, x: self.a(x), a=nn.Identity())
    returns = Does(lambda self, x: x)
    return nn.Sequential(Nap(1, 3), nn.Identity(), nn.Dropout(0.5).eval(), returns, Nap(1, 4), nested, Nap(1, 5))


@case
def a_module_used_twice() -> Any:
    shared = Nap(1, 3)
    return nn.Sequential(shared, Nap(1, 6), shared)


@case
def a_module_on_its_own_output() -> Any:
    def does(self: Any, x: Any) -> Any:
        y = self.shared(x)
        return self.other(y) + self.shared(y)

    model = Does(does, shared=Does(lambda self, x: nap(self, x, 1, 4)), other=Nap(1, 5))
    return model, lambda: model(data(True)).sum().backward()


def blocks_with(shared: nn.Module) -> Case:
    def block(ms: int) -> nn.Module:
        return Does(lambda self, x: nap(self, self.shared(nap(self, x, 1, ms)), 1, 2), shared=shared)

    model = nn.Sequential(block(5), block(7))
    return model, lambda: model(data(True)).sum().backward()


@case
def a_module_given_to_several_blocks() -> Any:
    return blocks_with(Nap(1, 3))


@case
def a_module_with_children_given_to_several_blocks() -> Any:
    return blocks_with(nn.Sequential(Nap(1, 3), Nap(1, 4)))


def checkpointed(reentrant: bool) -> nn.Module:
    def layer() -> nn.Module:
        inner = nn.Sequential(Nap(2, 4), Nap(2, 5))
        return Does(lambda self, x: checkpoint(self.inner, x, use_reentrant=reentrant), inner=inner)

    own = Does(lambda self, x: nap(self, x, 1, 9))
    return nn.Sequential(Nap(1, 7), layer(), own, layer(), Nap(1, 6))


@case
def checkpoint_reentrant() -> Any:
    return checkpointed(True)


@case
def checkpoint_not_reentrant() -> Any:
    return checkpointed(False)


@case
def several_backwards() -> Any:
    model = chain()
    return model, lambda: [model(data()).sum().backward() for _ in range(3)]


@case
def a_graph_kept_for_a_second_backward() -> Any:
    model = chain()

    def run() -> None:
        loss = model(data()).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    return model, run


@case
def a_gradient_of_a_gradient() -> Any:
    model = nn.Sequential(Nap(1, 3), nn.Tanh(), Nap(1, 5))

    def run() -> None:
        x = data(True)
        y = model(x).sum()
        (gradient,) = torch.autograd.grad(y, x, create_graph=True)
        (y + gradient.pow(2).sum()).backward()

    return model, run


@case
def frozen_in_the_middle() -> Any:
    model = chain()
    model[1].requires_grad_(False)
    return model


@case
def frozen_at_the_beginning() -> Any:
    model = chain()
    model[0].requires_grad_(False)
    return model


@case
def called_without_gradients() -> Any:
    def does(self: Any, x: Any) -> Any:
        with torch.no_grad():
            x = self.frozen(x)
        return self.trained(x)

    return Does(does, frozen=nn.Sequential(Nap(1, 2)), trained=Nap(1, 4))


@case
def detached_in_the_middle() -> Any:
    return Does(lambda self, x: self.b(self.a(x).detach()), a=Nap(1, 3), b=Nap(1, 4))


@case
def called_with_other_parameters() -> Any:
    model = chain()

    def run() -> None:
        torch.func.functional_call(model, dict(model.named_parameters()), (data(),)).sum().backward()

    return model, run


@case
def a_gradient_by_torch_func() -> Any:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def loss(parameters: Any) -> Any:
        return torch.func.functional_call(model, parameters, (data(),)).sum()

    def run() -> None:
        gradients = torch.func.grad(loss)({name: each.detach() for name, each in model.named_parameters()})
        for name, each in model.named_parameters():
            each.grad = gradients[name]

    return model, run


@case
def a_recurrent_network() -> Any:
    model = nn.LSTM(3, 3, 2)
    return model, lambda: model(torch.ones(4, 1, 3))[0].sum().backward()


@case
def two_models_with_children_of_one_name() -> Any:
    made = Does(lambda self, x: self.main(x), main=nn.Sequential(Nap(1, 3), Nap(1, 5)))
    judge = Does(lambda self, x: self.main(x), main=nn.Sequential(Nap(1, 4), Nap(1, 7)))

    def run() -> None:
        fake = made(data())
        judge(fake.detach()).sum().backward()
        judge(data()).sum().backward()
        judge(fake).sum().backward()

    return nn.ModuleList([made, judge]), run
