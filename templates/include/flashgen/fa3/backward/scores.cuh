#pragma once
// The elementwise steps between the backward's products, on what a thread holds of S^T and dP^T (64 keys x kBlockM query rows):
// [4 j + 2 h + e] = key lane / 4 + 8 h of its warp's 16, query row 8 j + 2 (lane % 4) + e.
#include <flashgen/fa3/backward/key_tile.cuh>
#include <flashgen/fa3/backward/smem.cuh>

namespace flashgen::fa3::backward {

template <class Config>
struct Scores {
  using Element = typename Config::Element;
  using Ds = typename Tiles<Config>::Ds;
  using Mask = BackwardMask<typename Config::Mask>;
  static constexpr int kCount = Config::kBlockM / 2;

  // S^T -> P^T = exp2(S^T * scale * log2(e) - LSE2), in place.
  __device__ __forceinline__ static void exponentiate(float (&s)[kCount], float const* lse, float scale_log2, int thread) {
    CUTE_UNROLL
    for (int j = 0; j < kCount / 4; ++j) {
      float2 const l = *reinterpret_cast<float2 const*>(lse + 8 * j + thread % 4 * 2);
      CUTE_UNROLL
      for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = ptx::ex2(fmaf(s[i], scale_log2, i % 2 == 0 ? -l.x : -l.y));
    }
  }

  // Zeroes P^T where the row does not see the key. After exponentiate, which may give inf there.
  __device__ __forceinline__ static void mask(float (&p)[kCount], BackwardParams const& params, int first_key, int m_block, int thread) {
    CUTE_UNROLL
    for (int h = 0; h < 2; ++h) {
      int const key = first_key + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
      int const begin = Mask::first_row(params, key) - m_block * Config::kBlockM - thread % 4 * 2;
      CUTE_UNROLL
      for (int i = 0; i < kCount / 2; ++i)
        if (i / 2 * 8 + i % 2 < begin) p[i / 2 * 4 + 2 * h + i % 2] = 0.f;
    }
  }

  // dP^T -> dS^T = P^T * (dP^T - dpsum), in place.
  __device__ __forceinline__ static void differentiate(float (&dp)[kCount], float const (&p)[kCount], float const* dpsum, int thread) {
    CUTE_UNROLL
    for (int j = 0; j < kCount / 4; ++j) {
      float2 const d = *reinterpret_cast<float2 const*>(dpsum + 8 * j + thread % 4 * 2);
      CUTE_UNROLL
      for (int i = 4 * j; i < 4 * j + 4; ++i) dp[i] = p[i] * (dp[i] - (i % 2 == 0 ? d.x : d.y));
    }
  }

  // As 16-bit A operand of a product over the query rows (wgmma.cuh).
  __device__ __forceinline__ static void convert(uint32_t (&pair)[kCount / 2], float const (&x)[kCount]) {
    CUTE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) pair[i] = ptx::pack<Element>(x[2 * i], x[2 * i + 1]);
  }

  // Converted dS^T of a warpgroup's 64 keys into rows [first_row, first_row + 64) of its tile, for dQ.
  __device__ __forceinline__ static void store(char* tile, uint32_t const (&pair)[kCount / 2], int first_row, int thread) {
    Element* const ds = reinterpret_cast<Element*>(tile);
    int const lane = thread % 32, row = first_row + thread / 32 * 16 + lane % 16, column = lane / 16 * 8;  // of the piece whose address this lane gives
    CUTE_UNROLL
    for (int j = 0; j < kCount / 4; j += 2)
      ptx::store_matrix_x4(ds + typename Ds::Layout{}(row, 8 * j + column), pair[2 * j], pair[2 * j + 1], pair[2 * j + 2], pair[2 * j + 3]);
  }
};

}  // namespace flashgen::fa3::backward
