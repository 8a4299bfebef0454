"""Matrix products by oneDNN are torch's own, to rounding."""

import pytest
import torch

from smodice_cli.algos import products


@pytest.fixture(params=[True, False], ids=["onednn", "torch"])
def either(request, monkeypatch):
    if request.param and not products._there():
        pytest.skip("this processor has no AVX-512, or this torch no oneDNN")
    monkeypatch.setattr(products, "_there", lambda: request.param)


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
@pytest.mark.parametrize(("width", "outputs"), [(1, 64), (11, 256), (256, 1), (256, 256)])
def test_a_layer_is_the_activation_of_the_product(either, rows, width, outputs):
    x, weight, bias = numbers(rows, width), numbers(outputs, width), numbers(outputs)
    plain = x.double() @ weight.double().T + bias.double()
    for name in ("relu", "tanh"):
        found = products.activated(x, weight, bias, name)
        torch.testing.assert_close(found.double(), getattr(torch, name)(plain), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (11, 300, 256), (256, 300, 256), (300, 256, 11)])
def test_products_of_transposed_matrices_are_right(either, rows, inner, columns):
    a, b = numbers(rows, inner), numbers(inner, columns)
    plain = a.double() @ b.double()
    for left in (a, a.T.contiguous().T):
        for right in (b, b.T.contiguous().T):
            torch.testing.assert_close(products.product(left, right).double(), plain, rtol=1e-4, atol=1e-4)


def test_the_same_product_has_the_same_bits(either):
    a, b = numbers(300, 256), numbers(256, 256)
    first = products.product(a, b)
    padded = torch.cat([numbers(1), a.reshape(-1)])[1:].view(300, 256)  # elsewhere in memory
    assert torch.equal(products.product(a, b), first)
    assert torch.equal(products.product(padded, b), first)


def test_other_numbers_and_places_are_left_to_torch():
    a, b = numbers(3, 4).double(), numbers(4, 2).double()
    assert torch.equal(products.product(a, b), a @ b)
    assert products.product(a.to("meta"), b.to("meta")).shape == (3, 2)


def test_what_is_no_number_stays_none(either):
    """A divergence must show: oneDNN's own relu of NaN is 0."""
    x, weight, bias = torch.full((2, 3), torch.nan), numbers(4, 3), numbers(4)
    for name in ("relu", "tanh"):
        assert products.activated(x, weight, bias, name).isnan().all()


@pytest.mark.filterwarnings("ignore:TF32")
def test_onednn_can_be_switched_off(either):
    a, b = numbers(300, 256), numbers(256, 256)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not products._by_onednn(a)
        assert torch.equal(products.product(a, b), a @ b)
