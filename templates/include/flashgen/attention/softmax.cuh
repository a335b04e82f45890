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
  float row_max[2], row_sum[2];               // row_max: what P is relative to; update_lazily lets it lag behind the true maximum
  float rescale[2];                           // what earlier sums and outputs are worth after the last update
  bool raised;                                // whether rescale may differ from 1 in a row of the warp; the same in every lane

  // The row's maximum in units of the exponent. NOTE: the product is rounded before it is subtracted, so that P and rescale use the very
  // same number; a fused one would weigh blocks differently when logits are large.
  __device__ __forceinline__ static float exponent_of(float maximum, float scale_log2) { return __fmul_rn(maximum, scale_log2); }

  // Of `maximum` and the scores of row h in its quad of lanes.
  __device__ __forceinline__ static float maximum_of(float const (&scores)[kCount], int h, float maximum) {
    CUTE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) maximum = fmaxf(maximum, scores[i / 2 * 4 + 2 * h + i % 2]);
    maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
    return fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
  }

  // Gives row h a maximum; earlier sums take its scale. Returns the exponent to subtract. kFirst: the tile's first block. kMayBeEmpty: a row may have
  // seen no key yet.
  template <bool kFirst, bool kMayBeEmpty>
  __device__ __forceinline__ float raise(int h, float maximum, float scale_log2) {
    float exponent = exponent_of(maximum, scale_log2);
    if constexpr (kMayBeEmpty) exponent = maximum == negative_infinity() ? 0.f : exponent;
    rescale[h] = kFirst ? 1.f : ptx::ex2(exponent_of(row_max[h], scale_log2) - exponent);
    row_max[h] = maximum;
    row_sum[h] = kFirst ? 0.f : row_sum[h] * rescale[h];
    return exponent;
  }

  // Turns scores into P in place.
  template <bool kFirst, bool kMayBeEmpty>
  __device__ __forceinline__ void update(float (&scores)[kCount], float scale_log2) {
    CUTE_UNROLL
    for (int h = 0; h < 2; ++h) {
      float const exponent = raise<kFirst, kMayBeEmpty>(h, maximum_of(scores, h, kFirst ? scores[2 * h] : row_max[h]), scale_log2);
      CUTE_UNROLL
      for (int i = 0; i < kCount / 2; ++i) {
        float& score = scores[i / 2 * 4 + 2 * h + i % 2];
        score = ptx::ex2(fmaf(score, scale_log2, -exponent));
        row_sum[h] += score;
      }
    }
    raised = !kFirst;
  }

  // P of a later block, packed, under the maximum so far: none greater is looked for. It may lag behind the true one while P stay small enough for
  // fp16 and for the sums, since the final normalisation divides the scale out (lazy rescaling, FlashAttention-4, section 3). Once the P of a thread
  // add up to more than kMostOfLag in a row, that row takes its true maximum and its warp does the block again.
  // NOTE: a sum that is no number must count as too large: so do rows that saw no key yet, whose maximum of -inf is subtracted. Which rows take
  // their maximum depends on themselves alone, so that no row's bits depend on its neighbours.
  // NOTE: scores are read twice and p is written twice: no product that writes or reads them may be in flight.
  template <class Element, bool kMayBeEmpty>
  __device__ __forceinline__ void update_lazily(float const (&scores)[kCount], uint32_t (&p)[kCount / 2], float scale_log2) {
    float exponent[2] = {exponent_of(row_max[0], scale_log2), exponent_of(row_max[1], scale_log2)}, sum[2];
    exponentials<Element>(scores, exponent, scale_log2, p, sum);
    raised = __any_sync(~0u, lags(sum[0]) || lags(sum[1]));
    if (raised) {
      CUTE_UNROLL
      for (int h = 0; h < 2; ++h) {
        int lagging = lags(sum[h]);
        lagging |= __shfl_xor_sync(~0u, lagging, 1);
        lagging |= __shfl_xor_sync(~0u, lagging, 2);
        float const maximum = maximum_of(scores, h, row_max[h]);
        exponent[h] = raise<false, kMayBeEmpty>(h, lagging ? maximum : row_max[h], scale_log2);
      }
      exponentials<Element>(scores, exponent, scale_log2, p, sum);
    }
    row_sum[0] += sum[0];
    row_sum[1] += sum[1];
  }
  static constexpr float kMostOfLag = 256.f;
  __device__ __forceinline__ static bool lags(float sum) { return !(sum <= kMostOfLag); }
  // p: pairs of neighbouring columns, as an A operand. sum: of this thread's P, before they are rounded to Element.
  template <class Element>
  __device__ __forceinline__ static void exponentials(float const (&scores)[kCount], float const (&exponent)[2], float scale_log2,
                                                      uint32_t (&p)[kCount / 2], float (&sum)[2]) {
    sum[0] = sum[1] = 0.f;
    CUTE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      float const low = ptx::ex2(fmaf(scores[2 * i], scale_log2, -exponent[i % 2]));
      float const high = ptx::ex2(fmaf(scores[2 * i + 1], scale_log2, -exponent[i % 2]));
      sum[i % 2] += low;
      sum[i % 2] += high;
      p[i] = ptx::pack<Element>(low, high);
    }
  }

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
