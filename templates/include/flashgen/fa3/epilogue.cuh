#pragma once
// From a warpgroup's accumulator to global memory: normalise, convert, store; the log-sum-exp straight from registers.
//   kOutputTile: through shared memory (stmatrix) and one bulk store that goes on by itself while the next tile starts.
//   otherwise: from registers, a quad of lanes first exchanging its pieces so that each lane stores 16 bytes: no shared memory, so that wide
//   heads keep their stages.
#include <flashgen/attention/softmax.cuh>
#include <flashgen/common/quad.cuh>
#include <flashgen/fa3/smem.cuh>

namespace flashgen::fa3 {

template <class Config>
struct Epilogue {
  using Element = typename Config::Element;
  using Out = typename Tiles<Config>::Out;
  using Mask = typename Config::Mask;
  static constexpr int kPieces = Config::kHeadDimV / 8;  // 16-byte pieces of a row: columns 8 j .. 8 j + 7

  // What a thread holds, normalised and converted at once so that no store waits between reads of the accumulator (ptxas would serialise the
  // products): pair[2 j + h] = row 16 warp + lane / 4 + 8 h, columns 8 j + 2 (lane % 4) + {0, 1}.
  uint32_t pair[2 * kPieces];

  __device__ __forceinline__ static Element* row_of_output(ForwardParams const& params, TileCoordinate const& at, int row) {
    return static_cast<Element*>(params.out_data) + at.batch * params.out_batch_stride + row * params.out_row_stride + at.head * params.out_head_stride;
  }
  __device__ __forceinline__ static float* row_of_lse(ForwardParams const& params, TileCoordinate const& at) {
    return params.lse + (static_cast<int64_t>(at.batch) * params.heads_q + at.head) * params.seqlen_q;
  }

  __device__ __forceinline__ Epilogue(float const (&acc)[Config::kHeadDimV / 2], Softmax<Config::kBlockN> const& softmax) {
    float const scale[2] = {softmax.inverse_sum(0), softmax.inverse_sum(1)};
    CUTE_UNROLL
    for (int i = 0; i < 2 * kPieces; ++i) {
      pair[i] = ptx::pack<Element>(acc[2 * i] * scale[i % 2], acc[2 * i + 1] * scale[i % 2]);
      // A row that saw no key beside rows that did: its products are 0 * v, and v may hold inf or NaN.
      if (Mask::kUnevenRows && scale[i % 2] == 0.f) pair[i] = 0;
    }
  }

  __device__ __forceinline__ void store_tile(ForwardParams const& params, char* tile, TileCoordinate const& at, int first_row, int barrier, int thread) const {
    if (thread == 0) ptx::store_wait_read();  // the previous tile's store
    ptx::named_sync(barrier, 128);
    Element* const out = reinterpret_cast<Element*>(tile);
    int const lane = thread % 32, row = thread / 32 * 16 + lane % 16, column = lane / 16 * 8;  // of the piece whose address this lane gives to stmatrix
    CUTE_UNROLL
    for (int j = 0; j < kPieces; j += 2) {
      Element* const to = out + typename Out::Layout{}(row, 8 * j + column);
      if (j + 1 < kPieces) ptx::store_matrix_x4(to, pair[2 * j], pair[2 * j + 1], pair[2 * j + 2], pair[2 * j + 3]);
      else ptx::store_matrix_x2(to, pair[2 * j], pair[2 * j + 1]);  // the addresses of lanes 0 to 15, whose column is 0
    }
    ptx::fence_async_proxy();
    ptx::named_sync(barrier, 128);
    if (thread == 0) {
      if (Mask::template has_rows<64>(params, first_row)) {
        CUTE_UNROLL
        for (int chunk = 0; chunk < Out::kChunks; ++chunk)
          ptx::tensor_store(params.out, tile + chunk * Out::kChunkBytes, chunk * Out::kWidth, first_row, at.head, at.batch);
      }
      ptx::store_commit();
    }
  }

  __device__ __forceinline__ void store_registers(ForwardParams const& params, TileCoordinate const& at, int first_row, int thread) const {
    int const lane = thread % 4, row = first_row + thread / 32 * 16 + thread % 32 / 4;
    Element* const out = row_of_output(params, at, row);
    CUTE_UNROLL
    for (int h = 0; h < 2; ++h) {
      bool const inside = Mask::template has_rows<1>(params, row + 8 * h);
      Element* const to = out + 8 * h * params.out_row_stride;
      CUTE_UNROLL
      for (int j = 0; j + 3 < kPieces; j += 4) {
        uint32_t piece[4];  // of lane l: its pair of pieces j .. j + 3, then all four pairs of piece j + l
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) piece[i] = pair[2 * (j + i) + h];
        transpose_quad(piece, lane);
        if (inside) *reinterpret_cast<uint4*>(to + 8 * (j + lane)) = make_uint4(piece[0], piece[1], piece[2], piece[3]);
      }
      CUTE_UNROLL
      for (int j = kPieces / 4 * 4; j < kPieces; ++j) {
        if (inside) *reinterpret_cast<uint32_t*>(to + 8 * j + 2 * lane) = pair[2 * j + h];
      }
    }
  }

  // A tile whose rows see no key: zeros, and a log-sum-exp of -inf.
  __device__ __forceinline__ static void store_empty(ForwardParams const& params, TileCoordinate const& at, int warpgroup, int thread) {
    int const first_row = Mask::template first_row<Config::kBlockM>(params, at.m_block) + warpgroup * 64;
    for (int i = thread; i < 64 * kPieces; i += 128) {
      int const row = first_row + i / kPieces;
      if (Mask::template has_rows<1>(params, row)) *reinterpret_cast<uint4*>(row_of_output(params, at, row) + i % kPieces * 8) = make_uint4(0, 0, 0, 0);
    }
    if (params.lse != nullptr && thread < 64 && Mask::template has_rows<1>(params, first_row + thread))
      row_of_lse(params, at)[first_row + thread] = negative_infinity();
  }

  // softmax after finish(). All 128 threads of the warpgroup.
  __device__ __forceinline__ static void run(ForwardParams const& params, Smem<Config>& smem, TileCoordinate const& at, int warpgroup, int thread,
                                             float const (&acc)[Config::kHeadDimV / 2], Softmax<Config::kBlockN> const& softmax) {
    int const first_row = Mask::template first_row<Config::kBlockM>(params, at.m_block) + warpgroup * 64;
    Epilogue const epilogue(acc, softmax);
    // A bulk store may not begin at a negative row, though a bulk load may.
    if constexpr (Config::kOutputTile) {
      if (!Mask::kUnevenRows || first_row >= 0) epilogue.store_tile(params, smem.out + warpgroup * Out::kBytes, at, first_row, kOwn + warpgroup, thread);
      else epilogue.store_registers(params, at, first_row, thread);
    } else {
      epilogue.store_registers(params, at, first_row, thread);
    }

    if (params.lse != nullptr && thread % 4 == 0) {
      float* const lse = row_of_lse(params, at);
      CUTE_UNROLL
      for (int h = 0; h < 2; ++h) {
        int const row = first_row + thread / 32 * 16 + thread % 32 / 4 + 8 * h;
        if (Mask::template has_rows<1>(params, row)) lse[row] = softmax.log_sum_exp(h, params.scale_log2);
      }
    }
  }
};

}  // namespace flashgen::fa3
