"""What kernels are for, by their names."""

from __future__ import annotations

import pytest

from prefixprop.benchmarking.device_profile import OTHER, DeviceProfile, kind_of


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "products with weights"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>", "products with weights"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_kernel<cutlass::bfloat16_t>", "attention, all rows"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention, all rows"),
        ("rotate_rows", "rotary positions"),
        ("local_rows", "attention, local rows"),
        ("_list_tokens", "attention, global rows and keys"),
        ("_normalise", "residual and LayerNorm"),
        ("void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl", "GELU"),
        ("Memset (Device)", OTHER),
    ],
)  # fmt: skip
def test_kinds(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_device_time_is_the_sum() -> None:
    assert DeviceProfile({"GELU": 1.5, OTHER: 0.25}, kernels=3, host=9.0).device == 1.75
