"""`rejuvenate_`: a pull of all parameters to the base, and neurons that get the values of the base."""

import copy

import pytest
import torch
from torch import nn

from lightning_fire.methods import confident_logits, initial_values, rejuvenate_
from lightning_fire.nets import GPT
from lightning_fire.where import Weights

TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def fine_tuned(bias: bool = False):
    """A GPT whose parameters have all moved, and its base."""
    torch.manual_seed(0)
    net = GPT(11, 8, depth=2, heads=2, dim=8, bias=bias).double()
    with torch.no_grad():
        for parameter in net.parameters():  # 0.02, the usual standard deviation, makes attention flat
            parameter.add_(0.2 * torch.randn_like(parameter))
    base = initial_values(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net, base


def logits_of(net):
    """The sum of the logits of each example."""
    return [net(row[None])[..., 4].sum() for row in TOKENS]


def layers_of(net):
    """The linear layers of the blocks by the name of their weight, with the slices that are matrices of their own."""
    parts = {"attn.c_attn": [slice(0, 8), slice(8, 16), slice(16, 24)]}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear) and name != "lm_head":
            short = name.split(".", 3)[-1]
            yield f"{name}.weight", layer, parts.get(short, [slice(None)]), "c_proj" in name


def activation_times_gradient(net):
    """The score of each neuron from hooks on inputs and on gradients of outputs, one position after another."""
    seen = {}

    def keep(layer, args, output):
        output.register_hook(lambda gradient: seen.setdefault(layer, []).append((args[0].detach()[0], gradient[0])))

    layers = list(layers_of(net))
    handles = [layer.register_forward_hook(keep) for _, layer, _, _ in layers]
    scores = {}
    for loss in logits_of(net):
        seen.clear()
        torch.autograd.grad(loss, list(net.parameters()))
        for name, layer, _, is_writer in layers:
            ((inputs, gradients),), weight = seen[layer], layer.weight.detach()
            size = layer.in_features if is_writer else layer.out_features
            own = scores.setdefault(name, torch.zeros(size, dtype=torch.float64))
            for neuron in range(size):
                total = 0.0
                for x, gradient in zip(inputs, gradients, strict=True):
                    if is_writer:  # what the neuron adds to the residual stream
                        total += float((x[neuron] * weight[:, neuron]) @ gradient)
                    else:
                        total += float((weight[neuron] @ x) * gradient[neuron])
                own[neuron] += abs(total)
    for handle in handles:
        handle.remove()
    return scores


@pytest.mark.parametrize("score", ["attribution", "drift"])
def test_equals_a_slow_version(score):
    net, base = fine_tuned()
    if score == "attribution":
        scores = activation_times_gradient(net)
    else:
        scores = {}
        for name, layer, _, is_writer in layers_of(net):
            pairs = zip(*(w.T if is_writer else w for w in (layer.weight.detach(), base[name])), strict=True)
            scores[name] = torch.tensor([float((new - old).norm() / old.norm()) for new, old in pairs])
    count = sum(map(len, scores.values()))
    assert count == 2 * (24 + 8 + 32 + 32)
    least = torch.cat(list(scores.values())).sort().values[-round(0.1 * count)]
    wanted = {name: 0.7 * value.detach() + 0.3 * base[name] for name, value in net.named_parameters()}
    for name, _, _, is_writer in layers_of(net):
        for neuron in range(len(scores[name])):
            if scores[name][neuron] >= least:
                index = (slice(None), neuron) if is_writer else neuron
                wanted[name][index] = base[name][index]
    report = rejuvenate_(net, base, lambda: iter(logits_of(net)), strength=0.3, fraction=0.1, score=score)
    assert report["neurons"] == round(0.1 * count) == 19
    for name, value in net.named_parameters():
        torch.testing.assert_close(value.detach(), wanted[name])
    assert report["sfe"] > 0


def test_without_a_reset_it_is_the_pull_and_needs_no_losses():
    net, base = fine_tuned(bias=True)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    assert rejuvenate_(net, base, strength=0.5, fraction=0.0)["neurons"] == 0
    for name, value in net.named_parameters():
        torch.testing.assert_close(value.detach(), (before[name] + base[name]) / 2)


def test_a_reset_of_all_neurons_leaves_embeddings_and_biases_and_norms():
    net, base = fine_tuned(bias=True)
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    rejuvenate_(net, base, strength=0.0, fraction=1.0, score="random")
    for name, value in net.named_parameters():
        is_matrix = ".h." in name and value.ndim == 2
        assert torch.equal(value.detach(), base[name] if is_matrix else before[name]), name


def test_random_neurons_follow_from_the_seed():
    chosen = []
    for seed in (1, 1, 2):
        net, base = fine_tuned()
        rejuvenate_(net, base, strength=0.0, fraction=0.2, score="random", seed=seed)
        weight = "transformer.h.0.mlp.c_fc.weight"
        chosen.append((net.state_dict()[weight] == base[weight]).all(1))
    assert torch.equal(chosen[0], chosen[1])
    assert not torch.equal(chosen[0], chosen[2])


def test_state_of_the_optimizer_and_gradients():
    net, base = fine_tuned()
    optimizer = torch.optim.Adam(net.parameters())
    sum(logits_of(net)).backward()
    optimizer.step()
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    rejuvenate_(net, base, lambda: iter(logits_of(net)), optimizers=optimizer)
    assert not optimizer.state
    assert all(map(torch.equal, gradients, [parameter.grad for parameter in net.parameters()]))


def test_where_and_writers():
    net, base = fine_tuned()
    where = Weights(preset="gpt", include=["h.0.mlp.c_fc"])
    before = copy.deepcopy(net.state_dict())
    report = rejuvenate_(net, base, strength=0.0, fraction=0.25, score="random", where=where, writers="c_fc")
    assert report["neurons"] == 2  # of 8 inputs, not of 32 outputs
    changed = [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["transformer.h.0.mlp.c_fc.weight"]
    same = (net.state_dict()[changed[0]] == base[changed[0]]).all(0)
    assert int(same.sum()) == 2


def test_hugging_face_stores_them_transposed():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 8}
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    base = {name: torch.zeros_like(value) for name, value in initial_values(net).items()}
    report = rejuvenate_(
        net, base, lambda: (net(row[None]).logits[..., 4].sum() for row in TOKENS), strength=0.0, fraction=0.5
    )
    block = net.transformer.h[0]
    zeros = [(layer.weight == 0).all(0) for layer in (block.attn.c_attn, block.mlp.c_fc)]  # (in, out)
    zeros += [(layer.weight == 0).all(1) for layer in (block.attn.c_proj, block.mlp.c_proj)]
    assert report["neurons"] == sum(int(each.sum()) for each in zeros) == 48  # of 24 + 32 + 8 + 32


def test_confident_logits():
    """Against a loop over positions."""
    torch.manual_seed(0)
    logits, base_logits, targets = torch.randn(2, 6, 5), torch.randn(2, 6, 5), torch.randint(5, (2, 6))
    gaps = {}
    for example in range(2):
        for position in range(6):
            entropies = []
            for each in (logits, base_logits):
                p = each[example, position].softmax(-1)
                entropies.append(-sum(float(q * q.log()) for q in p))
            gaps[example, position] = abs(entropies[0] - entropies[1])
    chosen = sorted(gaps, key=gaps.__getitem__)[-3:]
    wanted = sum(float(logits[index][targets[index]]) for index in chosen)
    assert float(confident_logits(logits, base_logits, targets, 3)) == pytest.approx(wanted, rel=1e-5)
    assert float(confident_logits(logits, base_logits, targets, 99)) == pytest.approx(
        float(logits.gather(-1, targets[..., None]).sum()), rel=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": 1.5}, "`strength` must be in \\[0, 1\\], got 1.5"),
        ({"fraction": -0.1}, "`fraction` must be in \\[0, 1\\], got -0.1"),
        ({"score": "size"}, "`score` must be 'attribution', 'drift' or 'random', got 'size'"),
        ({}, "this method needs Loop\\(losses="),
        ({"losses": "nan"}, "NaN or Inf in the gradients of `losses`"),
    ],
)
def test_errors_leave_the_model_as_it_is(options, message):
    net, base = fine_tuned()
    before = copy.deepcopy(net.state_dict())
    if "losses" in options:
        options = {"losses": lambda: [net(TOKENS).sum() * torch.nan]}
    with pytest.raises(ValueError, match=message):
        rejuvenate_(net, base, **options)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_other_errors():
    net, base = fine_tuned()
    with pytest.raises(TypeError, match="`target` must be values by name"):
        rejuvenate_(net, net, score="drift")
    del base["transformer.wpe.weight"]
    with pytest.raises(KeyError, match=r"transformer\.wpe\.weight"):
        rejuvenate_(net, base, score="drift")
    with pytest.raises(ValueError, match="`positions` must be at least 1, got 0"):
        confident_logits(torch.ones(3, 2), torch.ones(3, 2), torch.zeros(3, dtype=torch.int64), 0)
