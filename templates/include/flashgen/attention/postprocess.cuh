#pragma once
// After the backward's main kernel: dQ from its float32 accumulator. One thread block a block of M rows.
//
// The accumulator of a block keeps the order in which the threads of a product hold it (wgmma.cuh), so that the main kernel adds it in bulk:
// [row / 64][column / 8][thread][4], the 4 being 2 rows (8 apart) x 2 columns, or where M is no multiple of 64, and dQ^T the product,
// [column / 64][row / 8][thread][4], the 4 being 2 columns (8 apart) x 2 rows.
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

  BackwardParams const& params;
  float4 const* const accum;
  Element* const dq;  // of the head's first row
  int const first_row;
  bool const seen;    // else nobody may have written the accumulator

  __device__ __forceinline__ float4 load(int at) const { return seen ? accum[at] : make_float4(0.f, 0.f, 0.f, 0.f); }
  __device__ __forceinline__ uint32_t pack(float low, float high) const { return ptx::pack<Element>(low * params.scale, high * params.scale); }
  // 8 columns from that one on.
  __device__ __forceinline__ void store(int row, int column, uint32_t const (&x)[4]) const {
    if (row < params.seqlen_q) *reinterpret_cast<uint4*>(dq + row * params.dq_row_stride + column) = make_uint4(x[0], x[1], x[2], x[3]);
  }

  // A thread takes 2 rows x 8 columns: 64 bytes in one piece.
  __device__ __forceinline__ void convert() const {
    CUTE_UNROLL
    for (int first = 0; first < kRows / 2 * kPieces; first += kThreads) {
      int const index = first + threadIdx.x;
      if (kRows / 2 * kPieces % kThreads != 0 && index >= kRows / 2 * kPieces) break;
      int const pair = index / kPieces, piece = index - pair * kPieces;        // rows 16 (pair / 8) + pair % 8 + {0, 8}
      int const half = pair / 32, thread = pair % 32 / 8 * 32 + pair % 8 * 4;  // of 64 rows; the first of the quad that held the rows
      uint32_t upper[4], lower[4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float4 const x = load((half * kPieces + piece) * 128 + thread + i);
        upper[i] = pack(x.x, x.y);
        lower[i] = pack(x.z, x.w);
      }
      int const row = first_row + pair / 8 * 16 + pair % 8;
      store(row, piece * 8, upper);
      store(row + 8, piece * 8, lower);
    }
  }

  // A thread takes 2 rows x 16 columns, which 8 threads held; a warp's 4 neighbours read 64 bytes in one piece, and the warp writes whole rows.
  __device__ __forceinline__ void convert_transposed() const {
    constexpr int kColumns = kHeadDim / 16, kTasks = kRows / 8 * kColumns * 4;
    CUTE_NO_UNROLL
    for (int index = threadIdx.x; index < kTasks; index += kThreads) {
      int const quad = index % 4, columns = index / 4 % kColumns, rows = index / 4 / kColumns;
      int const at = (columns / 4 * (kRows / 8) + rows) * 128 + columns % 4 * 32 + quad;
      uint32_t left[2][4], right[2][4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float4 const x = load(at + 8 * i), y = load(at + 8 * i + 4);
        left[0][i] = pack(x.x, y.x);
        left[1][i] = pack(x.y, y.y);
        right[0][i] = pack(x.z, y.z);
        right[1][i] = pack(x.w, y.w);
      }
      CUTE_UNROLL
      for (int e = 0; e < 2; ++e) {
        int const row = first_row + rows * 8 + quad * 2 + e;
        store(row, columns * 16, left[e]);
        store(row, columns * 16 + 8, right[e]);
      }
    }
  }

  __device__ __forceinline__ static void run(BackwardParams const& params) {
    int64_t const tile = blockIdx.x, head_of_batches = tile / params.m_blocks;
    int const m_block = static_cast<int>(tile - head_of_batches * params.m_blocks);
    int const batch = static_cast<int>(head_of_batches / params.heads_q), head = static_cast<int>(head_of_batches - int64_t{batch} * params.heads_q);
    Postprocess const block{params, reinterpret_cast<float4 const*>(params.dq_accum + tile * (kRows * kHeadDim)),
                            static_cast<Element*>(params.dq) + batch * params.dq_batch_stride + head * params.dq_head_stride, m_block * kRows,
                            Mask::template sees<kRows>(params, m_block)};
    if constexpr (kRows % 64 == 0) block.convert();
    else block.convert_transposed();
  }
};

}  // namespace flashgen
