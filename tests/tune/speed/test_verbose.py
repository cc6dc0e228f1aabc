"""What oneDNN prints of its primitives, read."""

from __future__ import annotations

import pytest

from mxmp.tune.speed.verbose import Primitive, parse_line, sum_times

# The first were printed by MXNet 1.9.1 on a processor with AVX2. Those of bfloat16 were put together from
# src/common/verbose.cpp of oneDNN 2.4.4 and the names of its kernels, since that runs on other processors.
LINES = {
    "convolution": (
        "dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_training,src_f32::blocked:abcd:f0 wei_f32::blocked:Acdb8a:f0 "
        "bia_undef::undef::f0 dst_f32::blocked:aBcd8b:f0,,alg:convolution_direct,"
        "mb4_ic3oc16_ih16oh8kh3sh2dh0ph1_iw16ow8kw3sw2dw0pw1,0.026123",
        Primitive("convolution", False, (4, 16, 8, 8)),
    ),
    "depthwise": (
        "dnnl_verbose,exec,cpu,convolution,jit_dw:avx2,backward_data,src_f32::blocked:aBcd8b:f0 wei_f32::blocked:Abcde8a:f0 "
        "bia_undef::undef::f0 dst_f32::blocked:aBcd8b:f0,,alg:convolution_direct,"
        "g16mb4_ic16oc16_ih16oh16kh3sh1dh0ph1_iw16ow16kw3sw1dw0pw1,0.0280762",
        Primitive("convolution", False, (4, 16, 16, 16), depthwise=True),
    ),
    "fused": (
        "dnnl_verbose,exec,cpu,convolution,jit:avx2,forward_inference,src_f32::blocked:abcd:f0 wei_f32::blocked:Acdb8a:f0 "
        "bia_f32::blocked:a:f0 dst_f32::blocked:aBcd8b:f0,attr-post-ops:eltwise_relu:0:1 ,alg:convolution_direct,"
        "mb4_ic3oc16_ih16oh16kh3sh1dh0ph1_iw16ow16kw3sw1dw0pw1,0.0300293",
        Primitive("convolution", False, (4, 16, 16, 16)),
    ),
    "normalisation": (
        "dnnl_verbose,exec,cpu,batch_normalization,bnorm_jit:avx2,backward,data_f32::blocked:aBcd8b:f0 "
        "diff_f32::blocked:aBcd8b:f0,,flags:S,mb4ic16ih16iw16,0.0158691",
        Primitive("batch_normalization", False, (4, 16, 16, 16)),
    ),
    "activation": (
        "dnnl_verbose,exec,cpu,eltwise,jit:avx2,forward_training,data_f32::blocked:aBcd8b:f0 diff_undef::undef::f0,,"
        "alg:eltwise_relu alpha:0 beta:0,4x16x16x16,0.00805664",
        Primitive("eltwise", False, (4, 16, 16, 16)),
    ),
    "pooling": (
        "dnnl_verbose,exec,cpu,pooling_v2,ref:any,backward_data,src_f32::blocked:acdB8b:f0 dst_f32::blocked:aBcd8b:f0 "
        "ws_undef::undef::f0,,alg:pooling_avg_include_padding,mb4ic16_ih16oh1kh16sh1dh0ph0_iw16ow1kw16sw1dw0pw0,6.35107",
        Primitive("pooling_v2", True, (4, 16, 1, 1)),
    ),
    "layer": (
        "dnnl_verbose,exec,cpu,inner_product,x64:gemm:jit,forward_training,src_f32::blocked:ab:f0 wei_f32::blocked:ab:f0 "
        "bia_f32::blocked:a:f0 dst_f32::blocked:ab:f0,,,mb4ic16oc10,0.0229492",
        Primitive("inner_product", False, (4, 10)),
    ),
    "recurrent": (
        "dnnl_verbose,exec,cpu,rnn,ref:any,forward_training,src_layer_f32::blocked:abc:f0 src_iter_f32::blocked:abcd:f0 "
        "wei_layer_f32::blocked:abcde:f0 wei_iter_f32::blocked:abcde:f0 bias_f32::blocked:abcd:f0 dst_layer_f32::blocked:"
        "abc:f0 dst_iter_f32::blocked:abcd:f0,,alg:vanilla_lstm direction:unidirectional_left2right activation:undef,"
        "l1t5mb4sic16slc8dhc16dic16,0.0529785",
        Primitive("rnn", False, (5, 4, 16)),
    ),
    "recurrent in both directions": (
        "dnnl_verbose,exec,cpu,rnn,ref:any,backward,src_layer_f32::blocked:abc:f0 src_iter_f32::blocked:abcd:f0 "
        "wei_layer_f32::blocked:abcde:f0 wei_iter_f32::blocked:abcde:f0 bias_f32::blocked:abcd:f0 dst_layer_f32::blocked:"
        "abc:f0 dst_iter_f32::blocked:abcd:f0,,alg:vanilla_lstm direction:bidirectional_concat activation:undef,"
        "l1t5mb4sic16slc32dhc16dic16,0.105225",
        Primitive("rnn", False, (5, 4, 32)),
    ),
    "bfloat16 normalisation": (
        "dnnl_verbose,exec,cpu,batch_normalization,bnorm_ref:any,backward,data_bf16::blocked:acdb:f0 "
        "diff_bf16::blocked:aBcd16b:f0,,flags:S,mb128ic16ih32iw32,40.9",
        Primitive("batch_normalization", True, (128, 16, 32, 32)),
    ),
    "bfloat16 convolution": (
        "dnnl_verbose,exec,cpu,convolution,jit:avx512_core_amx_bf16,forward_training,src_bf16::blocked:acdb:f0 "
        "wei_bf16::blocked:ABcd16b16a2b:f0 bia_undef::undef::f0 dst_bf16::blocked:acdb:f0,,alg:convolution_direct,"
        "mb128_ic64oc32_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1,1.5",
        Primitive("convolution", False, (128, 32, 8, 8)),
    ),
    "product": (
        "dnnl_verbose,exec,cpu,matmul,gemm:jit,undef,src_bf16::blocked:abc:f0 wei_bf16::blocked:abc:f0 "
        "dst_bf16::blocked:abc:f0,,,8x12x64:8x64x12:8x12x12,0.25",
        Primitive("matmul", False, (8, 12, 12)),
    ),
    "volume": (
        "dnnl_verbose,exec,cpu,convolution,brgconv:avx512_core_bf16,forward_training,src_bf16::blocked:acdeb:f0 "
        "wei_bf16::blocked:AcdeB16a2b:f0 dst_bf16::blocked:acdeb:f0,,alg:convolution_direct,"
        "mb2_ic4oc6_id5od4kd3sd1dd0pd1_ih7oh6kh3sh1dh0ph1_iw9ow8kw3sw1dw0pw1,1",
        Primitive("convolution", False, (2, 6, 4, 6, 8)),
    ),
}


@pytest.mark.parametrize(("line", "primitive"), LINES.values(), ids=LINES)
def test_a_line_says_kind_kernel_and_shape(line, primitive):
    found, seconds = parse_line(line)
    assert found == primitive
    assert seconds == pytest.approx(float(line.split(",")[-1]) / 1000)


@pytest.mark.parametrize("kernel", ["ref:any", "bnorm_ref:any", "lnorm_ref:any", "ref_int8:any", "x64:gemm:ref"])
def test_reference_code_is_told_by_the_kernels_name(kernel):
    found, _ = parse_line(f"dnnl_verbose,exec,cpu,eltwise,{kernel},forward_training,m,,alg,4x4,1")
    assert found.reference


@pytest.mark.parametrize("kernel", ["jit:avx2", "simple:any", "brgemm:avx512_core_bf16", "prefetch:any"])
def test_other_code_is_no_reference_code(kernel):
    found, _ = parse_line(f"dnnl_verbose,exec,cpu,eltwise,{kernel},forward_training,m,,alg,4x4,1")
    assert not found.reference


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Epoch 1, loss 0.3",
        "dnnl_verbose,info,cpu,isa:Intel AVX2",
        "dnnl_verbose,create:cache_miss,cpu,eltwise,jit:avx2,forward_training,m,,alg,4x4,1",
        "dnnl_verbose,exec,gpu,eltwise,ocl:any,forward_training,m,,alg,4x4,1",
        "dnnl_verbose,exec,cpu,eltwise,jit:avx2,forward_training,m,,alg,4x4,fast",
        "dnnl_verbose,exec,cpu,eltwise,jit:avx2,forward_training,m,,alg,4x4,nan",
        "dnnl_verbose,exec,cpu,eltwise,jit:avx2,forward_training,m,,alg,,1",
        "dnnl_verbose,exec,cpu,elt",
    ],
)
def test_any_other_line_is_left_out(line):
    assert parse_line(line) is None


def test_times_of_equal_primitives_are_summed():
    lines = [line for line, _ in LINES.values()]
    times = sum_times([*lines, "something else", *lines])
    assert times[Primitive("pooling_v2", True, (4, 16, 1, 1))] == pytest.approx(2 * 6.35107e-3)
    assert times[Primitive("convolution", False, (4, 16, 16, 16))] == pytest.approx(2 * 0.0300293e-3)
