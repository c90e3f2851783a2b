"""The ways that are taken where nothing was measured: sensible for any shape, on every GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quantdock_cuda import tables
from quantdock_cuda.archs import describe
from quantdock_cuda.device import Device
from quantdock_cuda.libraries import LIBRARY
from quantdock_cuda.tiling import BLOCK, bucket, needs, rule, ways
from quantdock_cuda.unpacked import UNPACK
from quantdock_triton.tile import Form, Tile, parse_tile

# Multiprocessors and KiB of shared memory that a program may take.
SIZES = {
    "sm_80": (108, 163),
    "sm_86": (84, 99),
    "sm_89": (128, 99),
    "sm_90": (132, 227),
    "sm_100": (148, 227),
    "sm_120": (188, 99),
}
FORMS = {
    "row": Form(),
    "block": BLOCK,
    "small block": Form(x_cols=32, weight_cols=32, weight_rows=32),
    "group": Form(x_cols=96, weight_cols=96, weight_rows=64),
    "int8": Form(element="int8"),
    "weights alone": Form(weight_only=True, weight_cols=128, weight_rows=128),
}
SHAPES = ((16, 32), (64, 64), (250, 330), (2112, 7168), (4096, 4096), (128256, 8192), (256, 65536))
ROWS = (1, 2, 16, 17, 64, 128, 129, 512, 4096, 100_000)


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path, monkeypatch):
    """Give the test an empty cache."""
    monkeypatch.setenv("QUANTDOCK_CACHE", str(tmp_path))
    tables.measured.cache_clear()
    ways.cache_clear()
    yield
    tables.measured.cache_clear()
    ways.cache_clear()


def device(arch):
    num_sms, kib = SIZES[arch]
    features = describe(arch).features
    return Device(arch=arch, features=features, num_sms=num_sms, shared_bytes=kib << 10)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("arch", SIZES)
def test_every_way_fits_the_device_and_the_last_needs_no_feature(arch, form):
    facts = device(arch)
    for n, k in SHAPES:
        for m in ROWS:
            found = ways(form, facts, n, k, bucket(m))
            assert isinstance(found[-1], Tile) and not needs(found[-1])
            for tile in found:
                if isinstance(tile, Tile):
                    assert tile.shared_bytes(form) * tile.resident <= facts.shared_bytes
                    assert needs(tile) <= facts.features
                    assert 1 <= tile.parts <= max(-(-k // form.block_k(tile.k)), 1)
                    assert tile.stages >= 1


@pytest.mark.parametrize("arch", SIZES)
def test_the_rule_keeps_a_device_busy(arch):
    """Where there is work enough: programs for every multiprocessor, or sums in many parts."""
    facts = device(arch)
    for n, k in ((2112, 7168), (4096, 4096), (14336, 4096)):
        for m in (1, 16, 64, 512, 4096):
            tile = rule(Form(element="int8"), facts, n, k, m)
            programs = -(-m // tile.m) * -(-n // tile.n) * tile.parts
            assert programs >= 0.6 * facts.num_sms


def test_a_result_too_small_for_the_tiles_of_the_nearest_shape_takes_smaller_ones():
    facts = device("sm_90")
    near, small = (ways(Form(), facts, n, 7168, 512) for n in (2112, 256))
    assert near[0] != small[0]
    tile = next(way for way in small if isinstance(way, Tile))
    assert -(-512 // tile.m) * -(-256 // tile.n) >= 32


@pytest.fixture
def measured():
    """Return a GPU of 132 multiprocessors with some ways for 64 rows and for 16."""
    features = describe("sm_89").features
    facts = Device(arch="sm_89", name="G", features=features, num_sms=132, shared_bytes=99 << 10)
    low, high, divided = map(parse_tile, ("32x64x128 swap", "64x64x128 swap", "16x64x128 parts=4"))
    tables.store(facts, "row", (4096, 4096), 64, [(9.0, low)])
    tables.store(facts, "row", (7168, 2048), 64, [(9.0, high)])
    tables.store(facts, "row", (2112, 7168), 16, [(8.0, divided)])
    return facts, low, high


def test_a_last_round_for_few_programs_is_avoided(measured):
    """At 5120 output features: 160 programs of 32 rows, or 80 of 64."""
    facts, low, high = measured
    assert ways(Form(), facts, 5120, 5120, 64)[:2] == (high, low)
    assert ways(Form(), facts, 4096, 4096, 64)[0] == low
    assert ways(Form(), facts, 4000, 4096, 64)[0] == low


@pytest.mark.parametrize(
    ("n", "k", "parts"),
    [
        (2112, 7168, 4),  # as it was measured: 33 tiles in 4 parts are a round of 132 programs
        (2112, 2048, 4),
        (1280, 8192, 6),  # 20 tiles: 7 parts, as many programs as before, would be 8 too many
        (4096, 7168, 2),
        (2112, 1024, 2),  # of fewer columns each than a part is worth
    ],
)
def test_sums_are_divided_as_whole_rounds_need(measured, n, k, parts):
    assert ways(Form(), measured[0], n, k, 16)[0].parts == parts


def test_sums_have_no_more_parts_than_columns_allow():
    facts = device("sm_90")
    assert max(way.parts for way in ways(BLOCK, facts, 4096, 512, 16) if isinstance(way, Tile)) == 1
    many = [way for way in ways(BLOCK, facts, 256, 16384, 16) if isinstance(way, Tile)]
    assert max(way.parts for way in many) >= 4


@pytest.mark.parametrize("arch", ["sm_89", "sm_90", "sm_100", "sm_120"])
def test_one_scale_for_all_goes_to_cublaslt(arch):
    """Everywhere: it is the one fp8 product that cuBLASLt makes on every GPU."""
    facts = device(arch)
    assert ways(Form(), facts, 4096, 4096, 512, True)[0] == LIBRARY
    assert (ways(Form(), facts, 4096, 4096, 64, True)[0] == LIBRARY) is (arch != "sm_90")
    assert ways(Form(), facts, 4096, 4096, 1, True)[0] != LIBRARY


@pytest.mark.parametrize("arch", ["sm_89", "sm_100", "sm_120"])
def test_torchs_rows_and_blocks_are_taken_by_rule_on_hopper_alone(arch):
    for form in (Form(), BLOCK):
        assert LIBRARY in ways(form, device("sm_90"), 28672, 8192, 8192)
        assert LIBRARY not in ways(form, device(arch), 28672, 8192, 8192)


def test_weights_alone_are_widened_for_many_rows_everywhere():
    for arch in SIZES:
        alone = FORMS["weights alone"]
        wide = [way for way in ways(alone, device(arch), 4096, 4096, 512) if way != UNPACK]
        assert wide[0] == LIBRARY
        assert LIBRARY not in ways(alone, device(arch), 4096, 4096, 16)


@pytest.mark.parametrize("m", [1, 64, 4096])
def test_fp8_alone_is_unpacked_while_hoppers_tensor_cores_multiply(m):
    alone = Form(weight_only=True, weight_cols=128, weight_rows=128)
    assert ways(alone, device("sm_90"), 4096, 4096, m)[0] == UNPACK
    assert UNPACK not in ways(alone, device("sm_100"), 4096, 4096, m)
    assert UNPACK not in ways(alone, device("sm_90"), 4096, 4096 + 64, m)  # half a block of words
    assert UNPACK not in ways(
        alone, device("sm_90"), 28672, 8192, 4096
    )  # the library clocks higher
    narrow = Form(weight_only=True, weight_cols=32)
    assert UNPACK not in ways(narrow, device("sm_90"), 4096, 4096, m)


def waste(tile, n, m, num_sms):
    """Return how much longer the last round of programs makes few rows, as the rule counts it."""
    rounds = -(-m // tile.m) * -(-n // tile.n) * tile.parts / num_sms
    return -(-rounds // 1) / rounds if rounds > 1 else 1 + 0.3 * (1 / rounds - 1)


@pytest.mark.parametrize("name, form", [("row", Form()), ("block", BLOCK)])
@pytest.mark.parametrize("num_sms", [78, 114, 132])
def test_a_measured_way_fits_the_size_of_the_gpu(name, form, num_sms):
    """Measured with 132 multiprocessors: as it stands there, with other sums elsewhere."""
    facts = replace(device("sm_90"), num_sms=num_sms)
    worse = better = 0
    for (n, k), by_rows in tables.shipped("sm_90")[name].items():
        for m in (m for m in by_rows if m <= 128):
            entry = [way for way in by_rows[m] if isinstance(way, Tile)]
            found = [way for way in ways(form, facts, n, k, m) if isinstance(way, Tile)]
            if num_sms == 132:
                assert found[: len(entry)] == entry
                continue
            before, now = (waste(tiles[0], n, m, num_sms) for tiles in (entry, found))
            assert now <= max(before, 1.2) + 1e-9
            worse += now > before + 1e-9
            better += now < before - 1e-9
    assert num_sms == 132 or better > 2 * worse
