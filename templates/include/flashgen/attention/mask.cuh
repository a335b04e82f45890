#pragma once
// A mask owns where the tiles of query rows lie, its range of key blocks and its test of one score. Rows and keys count from 0 in their
// sequences; query i stands at key position i + Sk - Sq, so that the last query sees the last key.
// NOTE: the host keeps Sq + Sk and the number of tiles far enough below 2^31 for every sum here (INDEX_LIMIT in flashgen/launch.py).
#include <flashgen/attention/params.h>

namespace flashgen {

// Of consecutive query rows: key blocks [0, end) are computed, [0, full) of them need no test.
struct BlockRange {
  int end, full;
};

struct FullMask {
  static constexpr bool kUnevenRows = false;  // whether tiles of later rows take longer

  // Where a tile's rows begin. The last tile may run past the last row.
  template <int kBlockM>
  __device__ __forceinline__ static int first_row(ForwardParams const&, int m_block) { return m_block * kBlockM; }
  // Whether any of a tile's rows [first_row, first_row + kRows) exists.
  template <int kRows>
  __device__ __forceinline__ static bool has_rows(ForwardParams const& params, int first_row) { return first_row < params.seqlen_q; }
  // Of query rows [first_row, first_row + kRows).
  template <int kRows, int kBlockN>
  __device__ __forceinline__ static BlockRange blocks(ForwardParams const& params, int) {
    return {(params.seqlen_k + kBlockN - 1) / kBlockN, params.seqlen_k / kBlockN};
  }
  // Keys [0, end_key) are visible to the row.
  __device__ __forceinline__ static int end_key(ForwardParams const& params, int) { return params.seqlen_k; }
};

struct CausalMask {
  static constexpr bool kUnevenRows = true;

  // Tiles are laid from the last row back: the one that is not whole is the first, which takes the least time. Its first row may be negative.
  template <int kBlockM>
  __device__ __forceinline__ static int first_row(ForwardParams const& params, int m_block) {
    return params.seqlen_q - (params.m_blocks - m_block) * kBlockM;
  }
  template <int kRows>
  __device__ __forceinline__ static bool has_rows(ForwardParams const&, int first_row) { return first_row > -kRows; }
  template <int kRows, int kBlockN>
  __device__ __forceinline__ static BlockRange blocks(ForwardParams const& params, int first_row) {
    int const first = first_row + params.seqlen_k - params.seqlen_q;  // key position of the first row
    int const end = min(first + kRows, params.seqlen_k);              // <= 0: the rows see nothing
    return {(end + kBlockN - 1) / kBlockN, max(min(first + 1, params.seqlen_k), 0) / kBlockN};
  }
  __device__ __forceinline__ static int end_key(ForwardParams const& params, int row) {
    return min(params.seqlen_k, row + 1 + params.seqlen_k - params.seqlen_q);
  }
};

}  // namespace flashgen
