#pragma once
// Online softmax (Milakov & Gimelshein 2018; FlashAttention, Dao et al. 2022, section 3.1) of the two rows a thread holds of an accumulator.
// Scores stay unscaled: exp2(s * c - max * c) with c = softmax scale * log2(e) is one fused multiply-add and one ex2.
#include <flashgen/attention/params.h>
#include <flashgen/common/ptx.cuh>

namespace flashgen {

inline __device__ float negative_infinity() { return -__int_as_float(0x7f800000); }

template <int kBlockN>
struct Softmax {
  static constexpr int kCount = kBlockN / 2;  // scores of a thread: [4 j + 2 h + e], row half h
  float row_max[2], row_sum[2], rescale[2];   // rescale: what earlier sums and outputs are worth after the last update

  // The row's maximum in units of the exponent. NOTE: the product is rounded before it is subtracted, so that P and rescale use the very
  // same number; a fused one would weigh blocks differently when logits are large.
  __device__ __forceinline__ static float exponent_of(float maximum, float scale_log2) { return __fmul_rn(maximum, scale_log2); }

  // Turns scores into P in place. kFirst: the tile's first block. kMayBeEmpty: a row may have seen no key yet. kLazy: a maximum that grew by
  // less than 2^8 is not worth rescaling O for; P stays below 2^8 and the final normalisation divides it out (FlashAttention-4, section 3).
  template <bool kFirst, bool kMayBeEmpty, bool kLazy>
  __device__ __forceinline__ void update(float (&scores)[kCount], float scale_log2) {
    CUTE_UNROLL
    for (int h = 0; h < 2; ++h) {
      float maximum = kFirst ? scores[2 * h] : fmaxf(row_max[h], scores[2 * h]);
      CUTE_UNROLL
      for (int i = 1; i < kCount / 2; ++i) maximum = fmaxf(maximum, scores[i / 2 * 4 + 2 * h + i % 2]);
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
      bool const keep = kLazy && !kFirst && !((maximum - row_max[h]) * scale_log2 > 8.f);
      if (keep) maximum = row_max[h];
      float exponent = exponent_of(maximum, scale_log2);
      if constexpr (kMayBeEmpty) exponent = maximum == negative_infinity() ? 0.f : exponent;
      if constexpr (kFirst) rescale[h] = 1.f;
      else rescale[h] = keep ? 1.f : ptx::ex2(exponent_of(row_max[h], scale_log2) - exponent);
      row_max[h] = maximum;
      float sum = kFirst ? 0.f : row_sum[h] * rescale[h];
      CUTE_UNROLL
      for (int i = 0; i < kCount / 2; ++i) {
        float& score = scores[i / 2 * 4 + 2 * h + i % 2];
        score = ptx::ex2(fmaf(score, scale_log2, -exponent));
        sum += score;
      }
      row_sum[h] = sum;
    }
  }

  // Whether any row of the warp wants its output rescaled: the same answer in every lane.
  __device__ __forceinline__ bool wants_rescale() const { return __any_sync(~0u, rescale[0] != 1.f || rescale[1] != 1.f); }

  // After the last block: the whole row's sum in every thread of its quad.
  __device__ __forceinline__ void finish() {
    CUTE_UNROLL
    for (int h = 0; h < 2; ++h) {
      row_sum[h] += __shfl_xor_sync(~0u, row_sum[h], 1);
      row_sum[h] += __shfl_xor_sync(~0u, row_sum[h], 2);
    }
  }
  // 1 / sum; 0 for a row that saw no key, whose output is then 0.
  __device__ __forceinline__ float inverse_sum(int h) const { return row_sum[h] == 0.f ? 0.f : 1.f / row_sum[h]; }
  // Natural logarithm of the softmax's denominator; -inf for a row that saw no key.
  __device__ __forceinline__ float log_sum_exp(int h, float scale_log2) const {
    constexpr float kLn2 = 0.693147180559945f;
    return row_sum[h] == 0.f ? negative_infinity() : exponent_of(row_max[h], scale_log2) * kLn2 + __logf(row_sum[h]);
  }
};

}  // namespace flashgen
