#pragma once
// After the backward's main kernel: dQ from its float32 accumulator. One thread block a block of M rows.
//
// The accumulator of a block keeps the order in which the threads of a product hold it (wgmma.cuh), so that the main kernel adds it in bulk:
// [row / 64][column / 8][thread][4], the 4 being 2 rows (8 apart) x 2 columns. A thread here takes 2 rows x 8 columns: 64 bytes in one piece.
#include <flashgen/attention/backward_mask.cuh>
#include <flashgen/attention/backward_params.h>
#include <flashgen/common/ptx.cuh>

namespace flashgen {

template <class Config>
struct Postprocess {
  using Element = typename Config::Element;
  using Mask = BackwardMask<typename Config::Mask>;
  static constexpr int kThreads = 256;
  static constexpr int kRows = Config::kBlockM, kHeadDim = Config::kHeadDimQK, kPieces = kHeadDim / 8;

  __device__ __forceinline__ static void run(BackwardParams const& params) {
    int64_t const tile = blockIdx.x, head_of_batches = tile / params.m_blocks;
    int const m_block = static_cast<int>(tile - head_of_batches * params.m_blocks);
    int const batch = static_cast<int>(head_of_batches / params.heads_q), head = static_cast<int>(head_of_batches - int64_t{batch} * params.heads_q);
    float const* const accum = params.dq_accum + tile * (kRows * kHeadDim);
    Element* const dq = static_cast<Element*>(params.dq) + batch * params.dq_batch_stride + head * params.dq_head_stride;
    bool const seen = Mask::template sees<kRows>(params, m_block);  // else nobody may have written the accumulator

    CUTE_UNROLL
    for (int first = 0; first < kRows / 2 * kPieces; first += kThreads) {
      int const index = first + threadIdx.x;
      if (kRows / 2 * kPieces % kThreads != 0 && index >= kRows / 2 * kPieces) break;
      int const pair = index / kPieces, piece = index - pair * kPieces;             // rows 16 (pair / 8) + pair % 8 + {0, 8}
      int const half = pair / 32, thread = pair % 32 / 8 * 32 + pair % 8 * 4;       // of 64 rows; the first of the quad that held the rows
      float4 const* const from = reinterpret_cast<float4 const*>(accum) + (half * kPieces + piece) * 128 + thread;
      uint32_t upper[4], lower[4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float4 const x = seen ? from[i] : make_float4(0.f, 0.f, 0.f, 0.f);
        upper[i] = ptx::pack<Element>(x.x * params.scale, x.y * params.scale);
        lower[i] = ptx::pack<Element>(x.z * params.scale, x.w * params.scale);
      }
      int const row = m_block * kRows + pair / 8 * 16 + pair % 8;
      Element* const to = dq + row * params.dq_row_stride + piece * 8;
      if (row < params.seqlen_q) *reinterpret_cast<uint4*>(to) = make_uint4(upper[0], upper[1], upper[2], upper[3]);
      if (row + 8 < params.seqlen_q) *reinterpret_cast<uint4*>(to + 8 * params.dq_row_stride) = make_uint4(lower[0], lower[1], lower[2], lower[3]);
    }
  }
};

}  // namespace flashgen
