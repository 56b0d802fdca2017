# SPDX-License-Identifier: MIT
"""The Engram ops from Python against plain torch; test_ops.py has what holds for all functions."""
import pytest
import torch

import golden
import tegula.torch as reference
import tegula.modeling.engram as modeling
from conftest import needs_cuda
from tegula import engram
from tegula.testing import assert_equal


def constants(max_ngram, num_layers, num_heads, device, dtype=torch.int32):
    """(multipliers, vocab_sizes, offsets) as in TileKernels' tests."""
    multipliers = torch.randint(0, 100000, (num_layers, max_ngram), device=device)
    vocab_sizes = torch.randint(100000, 1000000, (num_layers, max_ngram - 1, num_heads), dtype=dtype, device=device)
    return multipliers, vocab_sizes, reference.make_offsets(vocab_sizes)


def any_bits(*shape, dtype, device):
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, shape, dtype=dtype, device=device)


# ---- engram_hash ----

@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("max_ngram, num_layers, num_heads", [
    (3, 2, 8), (2, 1, 1), (4, 2, 8), (5, 7, 3), (8, 2, 16), (1, 2, 8), (11, 1, 2)])
def test_hash(max_ngram, num_layers, num_heads, dtype, device):
    columns = constants(max_ngram, num_layers, num_heads, device, dtype)
    for num_tokens in (0, 1, 33, 512):
        ids = torch.randint(0, 100000, (num_tokens, max_ngram), dtype=torch.int32, device=device)
        mask = torch.rand(num_tokens, device=device) < 0.1
        assert_equal(engram.engram_hash(ids, *columns), reference.engram_hash_ref(ids, *columns))
        assert_equal(engram.engram_hash(ids, *columns, mask), reference.engram_hash_ref(ids, *columns, mask))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_hash_of_any_bits(dtype, device):
    """Products wrap, hashes are negative, moduli are none, sums are cut."""
    ids, multipliers = any_bits(70, 4, dtype=dtype, device=device), any_bits(3, 4, dtype=torch.int64, device=device)
    sizes, offsets = any_bits(3, 3, 5, dtype=dtype, device=device), any_bits(3, 15, dtype=dtype, device=device)
    sizes[0], sizes[1, 0, 0], sizes[1, 0, 1] = sizes[0] >> 20, 0, 1
    args = ids, multipliers, sizes, offsets
    assert_equal(engram.engram_hash(*args), reference.engram_hash_ref(*args))
    wide = torch.empty(3, 70, 15, dtype=torch.int64, device=device)
    engram.engram_hash(*args, out=wide)
    assert_equal(wide, reference.engram_hash_ref(*args[:3], offsets.long()))


def test_strided_windows(device):
    """Windows of a sequence are rows that overlap."""
    columns, ids = constants(3, 2, 8, device), torch.randint(0, 100000, (40,), dtype=torch.int32, device=device)
    for windows in (ids.as_strided((38, 3), (1, 1)), ids.view(10, 4)[:, 1:], ids[:3].expand(7, 3)):
        assert_equal(engram.engram_hash(windows, *columns), reference.engram_hash_ref(windows, *columns))


# ---- ngram_windows ----

def boundaries(num_requests, num_tokens, device):
    """Of random lengths, some 0; the last tokens have no request."""
    cuts = torch.randint(0, num_tokens + 1, (num_requests + 1,)).sort().values
    cuts[0] = 0
    return cuts.int().to(device)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("max_ngram", [1, 2, 3, 4, 11])
def test_windows(max_ngram, dtype, device):
    for num_tokens, num_requests in ((0, 3), (1, 1), (300, 1), (300, 40), (33, 100)):
        ids = torch.randint(-2, 9, (num_tokens,), dtype=dtype, device=device)
        history = torch.randint(-2, 9, (num_requests, max_ngram - 1), dtype=dtype, device=device)
        lookup = torch.randint(0, 99, (7,), dtype=torch.int32, device=device)
        cu = boundaries(num_requests, num_tokens, device)
        for args in ((None, None, None, None), (cu, None, lookup, 3), (cu, history, None, None), (cu, history, lookup, 3),
                     (cu.long(), history, lookup, -1), (None, history[:1], lookup, 5)):
            assert_equal(engram.ngram_windows(ids, max_ngram, 2, *args),
                         reference.ngram_windows_ref(ids, max_ngram, 2, *args))


# ---- engram_rows ----

def batch_of(max_ngram, num_tokens, num_requests, device, dtype):
    """Keyword arguments that a call may have."""
    given = {"image_token_mask": torch.rand(num_tokens, device=device) < 0.1,
             "cu_seqlens": boundaries(num_requests, num_tokens, device),
             "start_pos": torch.randint(-1, 9, (num_requests,), dtype=dtype, device=device)}
    history = torch.randint(-2, 9, (num_requests, max_ngram - 1), dtype=dtype, device=device)
    ring = torch.randint(-2, 9, (num_requests + 2, max_ngram + 3), dtype=dtype, device=device)
    slots = torch.randperm(num_requests + 2)[:num_requests].to(dtype).to(device)
    slots[::5] = -1
    yield {}
    yield {"image_token_mask": given["image_token_mask"], "hash_masked": True}
    yield {"cu_seqlens": given["cu_seqlens"].long(), "start_pos": given["start_pos"]}
    yield {**given, "history": history}
    yield {"cu_seqlens": given["cu_seqlens"], "history": history, "history_newest_first": True}
    yield {**given, "ring": ring, "slots": slots, "null_slot": 1}
    yield {**given, "ring": ring, "keep_ring": True}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("max_ngram, num_layers, num_heads", [(3, 2, 8), (4, 2, 8), (2, 1, 1), (5, 3, 3), (11, 1, 2)])
def test_rows(max_ngram, num_layers, num_heads, dtype, device):
    columns = constants(max_ngram, num_layers, num_heads, device, dtype)
    token_map = torch.randint(0, 99, (8,), dtype=torch.int32, device=device)
    for num_tokens, num_requests, layout, more in (
            (0, 3, "ltc", ()), (1, 1, "tlc", (token_map,)), (200, 1, "ltc", (token_map, 3)), (200, 30, "tlc", (None, 3)),
            (33, 60, "ltc", (token_map,))):
        ids = torch.randint(-1, 9, (num_tokens,), dtype=dtype, device=device)
        ngram = engram.NGram(*columns, 2, *more)
        for given in batch_of(max_ngram, num_tokens, num_requests, device, dtype):
            theirs = {name: v.clone() if name == "ring" else v for name, v in given.items()}
            rows = engram.engram_rows(ids, ngram, layout=layout, **given)
            assert_equal(rows, reference.engram_rows_ref(ids, ngram, layout=layout, **theirs))
            if "ring" in given:
                assert_equal(given["ring"], theirs["ring"])


def test_rows_are_hashes_of_windows(device):
    columns = constants(4, 2, 8, device)
    ids, cu = torch.randint(0, 900, (70,), device=device), boundaries(7, 70, device)
    cu[-1] = 70                                         # where all tokens have a request
    token_map = torch.randint(0, 700, (900,), dtype=torch.int32, device=device)
    rows = engram.engram_rows(ids, engram.NGram(*columns, 2, token_map, 5), cu)
    assert_equal(rows, engram.engram_hash(engram.ngram_windows(ids, 4, 2, cu, None, token_map, 5), *columns))


def test_rejected_drafts(device):
    """The next start_pos says how many were accepted; the rows are those of the text as it is."""
    # doc: drafts
    ngram = engram.NGram(*constants(4, 1, 8, device), pad_id=2)
    ids = torch.randint(0, 50, (40,), device=device)
    want = engram.engram_rows(ids, ngram)
    ring = torch.zeros(1, 3 + 5, dtype=torch.int32, device=device)      # N - 1 = 3, drafts of up to 5 tokens
    engram.engram_rows(ids[:20], ngram, start_pos=torch.tensor([0], device=device), ring=ring)      # prefill
    position = 20
    for accepted in (3, 0, 1, 5, 2, 4):
        draft = ids[position:position + 5].clone()
        draft[accepted:] += 1                           # wrong from here on
        rows = engram.engram_rows(draft, ngram, start_pos=torch.tensor([position], device=device), ring=ring)
        assert torch.equal(rows[:, :accepted], want[:, position:position + accepted])
        position += accepted
    # end


def test_serving_step(device):
    """Two layers, a prefill and a step of decoding; as one call of plain torch for all tokens."""
    streams, hidden, dim, lengths = 2, 16, 32, (5, 3)
    ngram = engram.NGram(*constants(3, 2, 4, device), pad_id=2)
    ngram = ngram._replace(vocab_sizes=ngram.vocab_sizes % 90 + 7)
    ngram = ngram._replace(offsets=reference.make_offsets(ngram.vocab_sizes))
    tables = [torch.randn(8 * 97, dim, device=device).to(torch.float8_e4m3fn) for _ in range(2)]
    factors = torch.randint(126, 129, (2, 8 * 97, dim // 32), dtype=torch.uint8, device=device)
    projections = torch.randn(2, 8 * dim, (streams + 1) * hidden, device=device) / 16
    weights = torch.randn(2, 2, streams, hidden, device=device).bfloat16()
    all_ids = [torch.randint(0, 50, (n,), device=device) for n in lengths]
    hidden_states = [torch.randn(n, streams, hidden, device=device).bfloat16() for n in lengths]
    masks = [torch.rand(n, device=device) < 0.2 for n in lengths]
    ring, slots = torch.full((4, 6), 77, dtype=torch.int32, device=device), torch.tensor([3, 1], device=device)
    done = [torch.empty_like(x) for x in hidden_states]
    for begin, end in ((0, 2), (2, 3), (3, 5)):                 # of each request; the second ends with the second chunk
        parts = [slice(begin, min(end, n)) for n in lengths]
        counts = [max(p.stop - p.start, 0) for p in parts]
        cu_seqlens, num_tokens = torch.tensor([0, counts[0], sum(counts)], device=device), sum(counts)
        start_pos = torch.full((2,), begin, device=device)
        ids, x, mask = (torch.cat([t[p] for t, p in zip(whole, parts)]) for whole in (all_ids, hidden_states, masks))
        # doc: step
        rows = engram.engram_rows(ids, ngram, cu_seqlens, start_pos, ring=ring, slots=slots, image_token_mask=mask)
        for layer in range(2):
            embedding = engram.engram_lookup(tables[layer], rows[layer], factors[layer], num_sms=16)
            kv = (embedding.flatten(1).float() @ projections[layer]).bfloat16().view(num_tokens, streams + 1, hidden)
            engram.engram_gate_kv_fwd(x, kv, None, 1e-20, 1e-6, False, mask, inplace=True, weights=weights[layer])
        # end
        for out, p, part in zip(done, parts, x.split(counts)):
            out[p] = part
    for ids, x, mask, out in zip(all_ids, hidden_states, masks, done):
        rows = reference.engram_rows_ref(ids, ngram, image_token_mask=mask)
        for layer in range(2):
            e = reference.engram_lookup_ref(tables[layer], rows[layer], factors[layer])
            kv = (e.flatten(1).float() @ projections[layer]).bfloat16().view(len(ids), streams + 1, hidden)
            made = reference.engram_gate_ref(x, kv[:, :-1], kv[:, -1], *weights[layer], 1e-6, 1e-20)
            x = torch.where(mask[:, None, None], x, made)
        torch.testing.assert_close(out, x, rtol=2**-6, atol=2**-5)


@needs_cuda
@pytest.mark.parametrize("staged", [False, True])
def test_step_as_graph(staged):
    """Ids to rows, lookup from pinned memory, gate in place: one graph, replayed with new ids; the ring goes on."""
    dim, hidden, streams, num_tokens, chunks = 64, 128, 3, 6, 4
    ngram = engram.NGram(*constants(3, 1, 4, "cuda"), pad_id=2)
    ngram = ngram._replace(vocab_sizes=ngram.vocab_sizes % 90 + 7)
    ngram = ngram._replace(offsets=reference.make_offsets(ngram.vocab_sizes))
    table = torch.randn(8 * 97, dim).to(torch.float8_e4m3fn).pin_memory()
    sf = torch.randint(126, 129, (8 * 97, dim // 32), dtype=torch.uint8).pin_memory()
    weights = torch.randn(2, streams, hidden, device="cuda").bfloat16()
    all_ids = torch.randint(0, 50, (chunks * num_tokens,), device="cuda")
    all_x = torch.randn(chunks * num_tokens, streams, hidden, device="cuda").bfloat16()
    ids, x = torch.empty_like(all_ids[:num_tokens]), torch.empty_like(all_x[:num_tokens])
    cu_seqlens, start_pos = torch.tensor([0, num_tokens], device="cuda"), torch.tensor([0], device="cuda")
    ring = torch.full((1, 9), 77, dtype=torch.int32, device="cuda")
    staging = torch.empty(256 + num_tokens * 8 * 66, dtype=torch.uint8, pin_memory=True)

    def step():
        rows = engram.engram_rows(ids, ngram, cu_seqlens, start_pos, ring=ring)[0]
        if staged:
            packed = engram.engram_lookup_staged(table, rows.int(), sf, staging).view(-1, 66)
            every = torch.arange(len(packed), device="cuda").view(num_tokens, 8)
            made = engram.engram_lookup(packed[:, :dim].view(torch.float8_e4m3fn), every, packed[:, dim:])
        else:
            made = engram.engram_lookup(table, rows, sf, num_sms=2)
        kv = made.view(num_tokens, streams + 1, hidden)
        engram.engram_gate_kv_fwd(x, kv, None, 1e-20, 1e-6, False, inplace=True, weights=tuple(weights))

    ids.zero_(), x.zero_()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()                          # loads kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    rows = engram.engram_rows(all_ids, ngram)[0]
    kv = engram.engram_lookup(table.cuda(), rows, sf.cuda()).view(-1, streams + 1, hidden)
    want = engram.engram_gate_kv_fwd(all_x, kv, None, 1e-20, 1e-6, False, weights=tuple(weights))[0]
    for chunk in range(chunks):
        part = slice(chunk * num_tokens, (chunk + 1) * num_tokens)
        ids.copy_(all_ids[part]), x.copy_(all_x[part]), start_pos.fill_(chunk * num_tokens)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(x.view(torch.int16), want[part].view(torch.int16)), chunk


def test_rows_out(device):
    ngram, ids = engram.NGram(*constants(3, 2, 8, device), 2), torch.randint(0, 50, (9,), device=device)
    for layout, shape in (("ltc", (2, 9, 16)), ("tlc", (9, 2, 16))):
        for dtype in (torch.int32, torch.int64):
            out = torch.empty(shape, dtype=dtype, device=device)
            assert engram.engram_rows(ids, ngram, layout=layout, out=out) is out
            assert torch.equal(out, engram.engram_rows(ids, ngram, layout=layout))


def test_the_ring_counts_as_written(device):
    """autograd must notice that a tensor which it saved was overwritten."""
    ngram, ids = engram.NGram(*constants(3, 1, 1, device), 2), torch.arange(4, device=device)
    ring = torch.zeros(1, 4, dtype=torch.int64, device=device)
    version = ring._version
    engram.engram_rows(ids, ngram, start_pos=torch.zeros(1, dtype=torch.int64, device=device), ring=ring)
    assert ring.tolist() == [[0, 1, 2, 3]] and ring._version > version


@pytest.mark.parametrize("call, message", [
    (lambda i, n: engram.ngram_windows(i[0], 0, 2), r"max_ngram_size: is 0, want 1\.\.4096$"),
    (lambda i, n: engram.ngram_windows(i[0], 4097, 2), r"max_ngram_size: is 4097, want 1\.\.4096$"),
    (lambda i, n: engram.ngram_windows(i[0], 3, 2, history=i[:, :2]), "cu_seqlens: is None, want a tensor with 5"),
    (lambda i, n: engram.engram_rows(i[0], n, layout="lct"), "layout: is 'lct', want 'ltc' or 'tlc'$"),
    (lambda i, n: engram.engram_rows(i[0], n, ring=i), "start_pos: is None, want a tensor with ring"),
    (lambda i, n: engram.engram_rows(i[0], n, None, i[0, :1], i[:1, :2], i[:1].clone()),
     "history: is given, want None with ring"),
    (lambda i, n: engram.engram_lookup(i.float(), i, i[:, :1].to(torch.uint8)), "table: dtype is f32, want e4m3"),
    (lambda i, n: engram.engram_rows(i[0], n._replace(token_map=i[0])), "token_map: dtype is i64, want i32"),
    (lambda i, n: engram.engram_rows(i[0], n, out=torch.zeros(2, 3, 16, device=i.device)), "out: dtype is f32, want i32"),
    (lambda i, n: engram.engram_rows(i[0], n, layout="tlc", out=i.new_zeros(2, 3, 16, dtype=torch.int32)),
     r"out\.swapaxes\(0, 1\): shape is \[3, 2, 16\], want \[2, 3, 16\]"),
    (lambda i, n: engram.engram_rows(i[0], None), "ngram: is a NoneType, want an NGram$"),
    (lambda i, n: engram.engram_lookup_bwd(torch.zeros(5, 3, 2), i, 9, grad_table=[1]), "grad_table: is a .*list"),
    (lambda i, n: engram.engram_lookup_bwd(i[..., None].float(), i, 9, grad_table=i[0, 0].float()),
     "grad_table: has 0 dimensions, want 2"),
], ids=range(13))
def test_errors(call, message, device):
    with pytest.raises((TypeError, ValueError), match="^" + message):
        call(torch.randint(0, 9, (5, 3), device=device), engram.NGram(*constants(3, 2, 8, device), 2))


@pytest.mark.parametrize("case", [c for c in golden.cases("engram") if c.op == "make_offsets"], ids=str)
def test_recorded_offsets(case, device):
    case.check("out", reference.make_offsets(**case.inputs(device)))


def test_layout_of_fake_rows(device):
    """Strides, too: rows of one token lie together."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    ngram, ids = engram.NGram(*constants(3, 2, 8, device), 2), torch.arange(9, device=device)
    with FakeTensorMode() as mode:
        fakes = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, (ids, ngram))
        fake = engram.engram_rows(*fakes, layout="tlc")
    seen = engram.engram_rows(ids, ngram, layout="tlc")
    assert fake.shape == seen.shape == (9, 2, 16) and fake.stride() == seen.stride() == (32, 16, 1)


def test_v2():
    import tegula.v2 as v2
    assert v2.engram.engram_hash is engram.engram_hash


# ---- engram_lookup ----

TABLES = [(torch.float32, None, {}), (torch.float32, None, {"dtype": torch.bfloat16}), (torch.float16, None, {}),
          (torch.float16, None, {"dtype": torch.bfloat16}), (torch.bfloat16, None, {}),
          (torch.float8_e4m3fn, None, {}), (torch.float8_e4m3fn, "one", {}), (torch.float8_e4m3fn, "groups", {}),
          (torch.float8_e4m3fn, "groups", {"packed": True}),
          (torch.float8_e4m3fn, None, {"dtype": torch.float8_e4m3fn})]


def a_table(dtype, factors, device, rows=50, dim=96):
    """(table, table_sf): any bits, NaN too."""
    bits = torch.randint(0, 256, (rows, dim * dtype.itemsize), dtype=torch.uint8, device=device).view(dtype)
    if factors == "groups":
        return bits, torch.randint(0, 256, (rows, dim // 32), dtype=torch.uint8, device=device)
    return bits, torch.randn(1, device=device) if factors == "one" else None


def same_bits(made, want):
    """NaN of bfloat16 have one form here, and any in torch."""
    if made.dtype == torch.bfloat16:
        made, want = made.nan_to_num(1e30, 2e30, -2e30), want.nan_to_num(1e30, 2e30, -2e30)
    assert made.dtype == want.dtype and made.shape == want.shape
    assert torch.equal(made.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype, factors, options", TABLES)
def test_lookup(dtype, factors, options, device):
    table, sf = a_table(dtype, factors, device)
    for rows in (torch.randint(-20, 80, (33, 5), device=device), torch.randint(0, 50, (5, 33), device=device).t().int(),
                 torch.empty(0, 3, dtype=torch.int64, device=device)):
        for row_begin in (0, 7):
            made = engram.engram_lookup(table, rows, sf, row_begin=row_begin, **options)
            same_bits(made, reference.engram_lookup_ref(table, rows, sf, row_begin=row_begin, **options))


def test_lookup_out(device):
    """Into a strided tensor; factors as packed by per_token_cast."""
    table, sf = a_table(torch.float8_e4m3fn, "groups", device)
    rows = torch.randint(-20, 80, (33, 5), device=device)
    whole = torch.empty(5, 33, 2 * 96, dtype=torch.bfloat16, device=device)
    out = whole.transpose(0, 1)[:, :, 96:]
    assert engram.engram_lookup(table, rows, sf, out=out) is out
    same_bits(out, reference.engram_lookup_ref(table, rows, sf))
    words = torch.empty(4, 40, dtype=torch.int32, device=device)[:, :33].t()
    codes = engram.engram_lookup(table, rows, sf, dtype=torch.float8_e4m3fn, out_sf=words)
    packed = reference.engram_lookup_ref(table, rows, sf, packed=True)
    assert torch.equal(codes.view(torch.uint8), packed[:, :, :96])
    factors = torch.cat([packed[:, :, 96:].reshape(33, 15), packed.new_zeros(33, 1)], 1)
    assert torch.equal(words.contiguous().view(torch.uint8), factors)


@pytest.mark.parametrize("dtype, factors, options", [row for row in TABLES if "packed" not in row[2]])
def test_lookup_of_all_rows(dtype, factors, options, device):
    """Without indices, as of packed rows, which are a table of codes beside its factors."""
    table, sf = a_table(dtype, factors, device)
    every = torch.arange(len(table), device=device)[:, None]
    made = engram.engram_lookup(table, None, sf, **options)
    same_bits(made, engram.engram_lookup(table, every, sf, **options))
    out = torch.zeros(len(table), 1, 2 * 96, dtype=made.dtype, device=device)[..., 96:]
    assert engram.engram_lookup(table, None, sf, **options, out=out) is out
    same_bits(out, made)
    if factors == "groups":
        rows = torch.randint(-20, 80, (33, 5), device=device)
        packed = engram.engram_lookup(table, rows, sf, packed=True).view(-1, 99)
        made = engram.engram_lookup(packed[:, :96].view(dtype), None, packed[:, 96:], num_sms=2)
        same_bits(made.view(33, 5, 96), engram.engram_lookup(table, rows, sf))


def test_lookup_in_pinned_memory(device):
    if device == "cpu":
        pytest.skip("there is no other memory")
    table, sf = (t.pin_memory() for t in a_table(torch.float8_e4m3fn, "groups", "cpu"))
    rows = torch.randint(-20, 80, (33, 5), device=device)
    made = engram.engram_lookup(table, rows, sf, num_sms=2)
    same_bits(made, reference.engram_lookup_ref(table.to(device), rows, sf.to(device)))
    with pytest.raises(ValueError, match="table: memory is not page-locked"):
        engram.engram_lookup(table.clone(), rows, sf)


def test_lookup_refuses(device):
    table, sf = a_table(torch.float8_e4m3fn, "groups", device)
    rows = torch.randint(0, 50, (3, 2), device=device)
    for call, message in ((lambda: engram.engram_lookup(table, rows, dtype=torch.float32), "out: dtype is f32"),
                          (lambda: engram.engram_lookup(table, rows, dtype=torch.int32), "dtype: is torch.int32, want"),
                          (lambda: engram.engram_lookup(table, rows, packed=True), "table_sf: is None"),
                          (lambda: engram.engram_lookup(table, rows, sf, packed=True, dtype=torch.float32),
                           "dtype: is given, want None with packed"),
                          (lambda: engram.engram_lookup(table, rows, torch.tensor([0.5, 7.0], device=device)),
                           r"table_sf: shape is \[1, 2\], want \[1\]"),
                          (lambda: engram.engram_lookup(table, rows, torch.full((1, 3), 0.5, device=device)),
                           r"table_sf: shape is \[1, 3\], want \[1\]"),
                          (lambda: engram.engram_lookup(table, rows, torch.full((50, 1), 0.5, device=device)),
                           r"table_sf: shape is \[50, 1\], want \[1\]"),
                          (lambda: engram.engram_lookup(table, rows, torch.empty(0, device=device)),
                           r"table_sf: shape is \[1, 0\], want \[1\]"),
                          (lambda: engram.engram_lookup(table, rows, sf, row_begin=-1), "row_begin: is -1, want >= 0"),
                          (lambda: engram.engram_lookup(table, None, sf, packed=True), "indices: is None, .* with packed"),
                          (lambda: engram.engram_lookup(table, None, sf, row_begin=3), "indices: .* with row_begin"),
                          (lambda: engram.engram_lookup(table, None, torch.full((50, 1), 0.5, device=device)),
                           r"table_sf: shape is \[50, 1\], want \[1\]")):
        with pytest.raises(ValueError, match=message):
            call()
    for no_table in (None, [[1.0]]):
        with pytest.raises(TypeError, match="table: is a <class '.*'>, want a tensor"):
            engram.engram_lookup(no_table, rows)


def test_one_factor(device):
    """In any number of dimensions."""
    table, rows = a_table(torch.float8_e4m3fn, None, device)[0], torch.randint(0, 50, (3, 2), device=device)
    want = engram.engram_lookup(table, rows, torch.tensor([0.37], device=device))
    for shape in ((), (1,), (1, 1)):
        same_bits(engram.engram_lookup(table, rows, torch.full(shape, 0.37, device=device)), want)


def test_lookup_staged(device):
    """The bytes of the packed lookup; the table is in any host memory, indices in rows that may be strided."""
    table, sf = a_table(torch.float8_e4m3fn, "groups", "cpu")
    staging = torch.empty(2000 + 33 * 5 * 99, dtype=torch.uint8, pin_memory=device == "cuda")
    for rows in (torch.randint(-20, 80, (33, 5), device=device), torch.randint(0, 50, (33, 9), device=device).int()[:, :5],
                 torch.empty(0, 3, dtype=torch.int64, device=device)):
        made = engram.engram_lookup_staged(table, rows, sf, staging, row_begin=7)
        assert made.device == rows.device
        same_bits(made.cpu(), reference.engram_lookup_ref(table, rows.cpu(), sf, row_begin=7, packed=True))
    out = torch.empty(33, 5, 99, dtype=torch.uint8, device=device)
    rows = torch.randint(-20, 80, (33, 5), device=device)
    assert engram.engram_lookup_staged(table, rows, sf, staging, out=out) is out
    same_bits(out.cpu(), reference.engram_lookup_ref(table, rows.cpu(), sf, packed=True))
    with pytest.raises(ValueError, match=r"staging: shape is \[17870\], want \[>= 17871\]"):
        engram.engram_lookup_staged(table, rows, sf, staging[:17870])
    if device == "cuda":
        with pytest.raises(ValueError, match="staging: memory is not page-locked"):
            engram.engram_lookup_staged(table, rows, sf, staging.clone())


# ---- engram_lookup_bwd ----

@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_lookup_bwd(dtype, device):
    rows = torch.cat([torch.randint(-5, 40, (50, 4), device=device), torch.full((40, 4), 7, device=device)])
    for columns, dim, num_rows, row_begin in ((4, 40, 30, 3), (3, 33, 0, 0), (1, 1, 100, 0)):
        indices = rows[:, :columns].int() if columns == 3 else rows[:, :columns]
        grad = torch.randn(90, columns, dim, device=device).to(dtype)
        want = reference.engram_lookup_bwd_ref(grad, indices, num_rows, row_begin=row_begin)
        unique, sums, count = engram.engram_lookup_bwd(grad, indices, num_rows, row_begin=row_begin)
        n = count.item()
        assert unique.dtype == indices.dtype and unique[n:].eq(-1).all()
        assert_equal(unique[:n], want[0])
        assert_equal(sums[:n], want[1])
        if num_rows:
            table = torch.randn(num_rows, dim, device=device)
            added = table.clone()
            added[want[0].long() - row_begin] += want[1]
            assert engram.engram_lookup_bwd(grad, indices, num_rows, row_begin=row_begin, grad_table=table) is None
            assert_equal(table, added)


def test_lookup_bwd_is_the_gradient(device):
    """Of a bfloat16 table, by autograd through plain indexing; sums are exact on integers."""
    table = torch.randint(-8, 8, (30, 16), device=device).bfloat16().requires_grad_()
    rows, grad = torch.randint(0, 30, (50, 4), device=device), torch.randint(-8, 8, (50, 4, 16), device=device).bfloat16()
    table.float()[rows].backward(grad.float())
    made = torch.zeros(30, 16, device=device)
    engram.engram_lookup_bwd(grad, rows, 30, grad_table=made)
    assert_equal(made.bfloat16(), table.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_lookup_layer(dtype, device):
    """Against autograd of plain indexing: sums of integers are exact. With main_grad it is added there."""
    table, rows = torch.randint(-8, 8, (30, 16), device=device).to(dtype), torch.randint(-4, 40, (2, 25, 4), device=device)
    grad = torch.randint(-8, 8, (2, 25, 4, 16), device=device).to(dtype)
    is_here = (rows >= 3) & (rows < 33)
    plain, ours = table.clone().requires_grad_(), torch.nn.Parameter(table.clone())
    want = plain[(rows - 3).clamp(0, 29)].masked_fill(~is_here[..., None], 0)
    want.float().backward(grad.float())
    made = modeling.lookup(ours, rows, 3)
    assert_equal(made.detach(), want.detach())
    made.backward(grad)
    assert_equal(ours.grad, plain.grad)
    ours.grad, ours.main_grad = None, torch.ones(30, 16, device=device)
    modeling.lookup(ours, rows, 3).backward(grad)
    assert ours.grad is None
    assert_equal(ours.main_grad, 1 + plain.grad.float())
    with pytest.raises(TypeError, match="table: dtype is torch.float16, want bfloat16 or float32"):
        modeling.lookup(table.half(), rows)


def test_lookup_layer_of_one_index(device):
    table = torch.randn(30, 16, device=device, requires_grad=True)
    made = modeling.lookup(table, torch.tensor(5, device=device), 3)
    assert_equal(made.detach(), table.detach()[2])
    made.sum().backward()
    assert table.grad[2].eq(1).all() and table.grad.sum() == 16


def test_lookup_layer_gradcheck(device):
    """By finite differences, which are exact enough in float32: the op is linear."""
    table = torch.randn(6, 3, device=device, requires_grad=True)
    rows, weight = torch.randint(-1, 7, (4, 2), device=device), torch.randn(4, 2, 3, device=device)
    (modeling.lookup(table, rows) * weight).sum().backward()
    for i in range(6):
        for j in range(3):
            there, here = table.detach().clone(), table.detach().clone()
            there[i, j] += 0.5
            here[i, j] -= 0.5
            slope = (modeling.lookup(there, rows).double() - modeling.lookup(here, rows).double()).mul(weight.double()).sum()
            assert abs(slope.item() - table.grad[i, j].item()) < 1e-5
