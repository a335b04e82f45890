#pragma once
// Before the backward's main kernel: what a query row contributes to every gradient, and clean counters. One thread block a block of M rows.
//   dS = P * (dP - rowsum(dO * O)) + P * dLSE = P * (dP - dpsum)     with dpsum = rowsum(dO * O) - dLSE
#include <cute/numeric/integral_constant.hpp>
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>
#include <flashgen/attention/backward_params.h>

namespace flashgen {

template <class Config>
struct Preprocess {
  using Element = typename Config::Element;
  static constexpr int kThreads = 256;
  static constexpr int kPieces = Config::kHeadDimV / 8;  // 16 bytes each
  static constexpr int kLanes = kPieces >= 16 ? 16 : kPieces >= 8 ? 8 : kPieces >= 4 ? 4 : 1;  // threads that share a row
  static constexpr int kRows = Config::kBlockM, kRowsAtOnce = kThreads / kLanes;

  __device__ __forceinline__ static float dot(uint4 const& a, uint4 const& b) {
    Element const* const x = reinterpret_cast<Element const*>(&a);
    Element const* const y = reinterpret_cast<Element const*>(&b);
    float sum = 0.f;
    CUTE_UNROLL
    for (int i = 0; i < 8; ++i) sum = fmaf(static_cast<float>(x[i]), static_cast<float>(y[i]), sum);
    return sum;
  }

  __device__ __forceinline__ static void run(BackwardParams const& params) {
    int64_t const tile = blockIdx.x, head_of_batches = tile / params.m_blocks;
    int const m_block = static_cast<int>(tile - head_of_batches * params.m_blocks);
    int const batch = static_cast<int>(head_of_batches / params.heads_q), head = static_cast<int>(head_of_batches - int64_t{batch} * params.heads_q);

    if constexpr (!Config::kStoresFirst) {
      float4* const accum = reinterpret_cast<float4*>(params.dq_accum + tile * (kRows * Config::kHeadDimQK));
      for (int i = threadIdx.x; i < kRows * Config::kHeadDimQK / 4; i += kThreads) accum[i] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
    if (threadIdx.x == 0) params.dq_state[tile] = 0;
    if constexpr (Config::kPersistent) {
      if (threadIdx.x == 0 && tile == 0) *params.next_tile = 0;
    }
    Element const* const out = static_cast<Element const*>(params.out_data) + batch * params.out_batch_stride + head * params.out_head_stride;
    Element const* const dout = static_cast<Element const*>(params.dout_data) + batch * params.dout_batch_stride + head * params.dout_head_stride;
    int const lane = threadIdx.x % kLanes;
    CUTE_UNROLL
    for (int first = 0; first < kRows; first += kRowsAtOnce) {
      int const in_block = first + threadIdx.x / kLanes, row = m_block * kRows + in_block;
      bool const inside = row < params.seqlen_q;
      float sum = 0.f;
      if (inside) {
        CUTE_UNROLL
        for (int i = 0; i < kPieces; i += kLanes) {
          if (kPieces % kLanes != 0 && i + lane >= kPieces) break;
          uint4 const a = *reinterpret_cast<uint4 const*>(out + row * params.out_row_stride + (i + lane) * 8);
          uint4 const b = *reinterpret_cast<uint4 const*>(dout + row * params.dout_row_stride + (i + lane) * 8);
          sum += dot(a, b);
        }
      }
      CUTE_UNROLL
      for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
      if (lane == 0 && in_block < kRows) {
        int64_t const at = tile * kRows + in_block, from = head_of_batches * params.seqlen_q + row;
        float const infinity = __int_as_float(0x7f800000), lse = inside ? params.lse[from] : -infinity;
        bool const empty = lse == -infinity;  // the row saw no key, or is none: P = 0, and nothing that stands in its dout counts
        params.lse_log2[at] = empty ? infinity : lse * 1.44269504088896f;
        params.dpsum[at] = empty ? 0.f : params.dlse != nullptr ? sum - params.dlse[from] : sum;
      }
    }
  }
};

}  // namespace flashgen
