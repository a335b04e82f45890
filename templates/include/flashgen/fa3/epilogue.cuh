#pragma once
// From a warpgroup's accumulator to global memory: normalise, convert, shared memory (stmatrix), one bulk store that goes on by itself;
// the log-sum-exp straight from registers.
#include <flashgen/attention/softmax.cuh>
#include <flashgen/fa3/smem.cuh>

namespace flashgen::fa3 {

template <class Config>
struct Epilogue {
  using T = Tiles<Config>;
  using Out = typename T::Out;
  static constexpr int kColumnBlocks = Config::kHeadDimV / 8;

  // acc as Wgmma lays it out; softmax after finish(). All 128 threads of the warpgroup.
  __device__ __forceinline__ static void run(ForwardParams const& params, Smem<Config>& smem, TileCoordinate const& tile, int warpgroup, int thread,
                                             float const (&acc)[Config::kHeadDimV / 2], Softmax<Config::kBlockN> const& softmax) {
    using Element = typename Config::Element;
    Element* const out = reinterpret_cast<Element*>(smem.output(warpgroup));
    int const lane = thread % 32, warp_row = thread / 32 * 16;
    int const first_row = tile.m_block * Config::kBlockM + warpgroup * 64;
    float const scale[2] = {softmax.inverse_sum(0), softmax.inverse_sum(1)};

    if constexpr (!Config::kOutputOverQ) {
      if (thread == 0) ptx::store_wait_read();  // the previous tile's store
    }
    ptx::named_sync(kOutput + warpgroup, 128);
    int const row = warp_row + lane % 16, column = lane / 16 * 8;  // of the 16-byte piece this lane addresses for stmatrix
    auto piece = [&](int j, int h) { return ptx::pack<Element>(acc[4 * j + 2 * h] * scale[h], acc[4 * j + 2 * h + 1] * scale[h]); };
    CUTE_UNROLL
    for (int j = 0; j + 1 < kColumnBlocks; j += 2)
      ptx::store_matrix_x4(out + typename Out::Layout{}(row, 8 * j + column), piece(j, 0), piece(j, 1), piece(j + 1, 0), piece(j + 1, 1));
    if constexpr (kColumnBlocks % 2 == 1)
      ptx::store_matrix_x2(out + typename Out::Layout{}(row, 8 * (kColumnBlocks - 1)), piece(kColumnBlocks - 1, 0), piece(kColumnBlocks - 1, 1));
    ptx::fence_async_proxy();
    ptx::named_sync(kOutput + warpgroup, 128);
    if (thread == 0) {
      if (first_row < params.seqlen_q) {
        CUTE_UNROLL
        for (int chunk = 0; chunk < Out::kChunks; ++chunk)
          ptx::tensor_store(params.out, reinterpret_cast<char*>(out) + chunk * Out::kChunkBytes, chunk * Out::kWidth, first_row, tile.head, tile.batch);
      }
      ptx::store_commit();
    }

    if (params.lse != nullptr && lane % 4 == 0) {
      float* const lse = params.lse + (static_cast<int64_t>(tile.batch) * params.heads_q + tile.head) * params.seqlen_q;
      CUTE_UNROLL
      for (int h = 0; h < 2; ++h) {
        int const r = first_row + warp_row + lane / 4 + 8 * h;
        if (r < params.seqlen_q) lse[r] = softmax.log_sum_exp(h, params.scale_log2);
      }
    }
  }
};

}  // namespace flashgen::fa3
