#pragma once
// Lanes 4 i .. 4 i + 3 of a warp, which together hold 8 neighbouring columns of a product's row (wgmma.cuh).
#include <cute/numeric/integral_constant.hpp>

namespace flashgen {

// A 4 x 4 transposition over the lanes of a quad: lane l's word i goes to lane i's word l. lane: 0 .. 3.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4], int lane) {
  CUTE_UNROLL
  for (int bit = 1; bit <= 2; bit *= 2) {
    bool const upper = lane & bit;
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      uint32_t const kept = upper ? word[i + bit] : word[i];
      uint32_t const got = __shfl_xor_sync(~0u, upper ? word[i] : word[i + bit], bit);
      word[i] = upper ? got : kept;
      word[i + bit] = upper ? kept : got;
    }
  }
}

}  // namespace flashgen
