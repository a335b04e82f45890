#pragma once
// Masks as seen from the keys: which query rows see a block of them. Mask names the forward's type (attention/mask.cuh).
#include <flashgen/attention/backward_params.h>
#include <flashgen/attention/mask.cuh>

namespace flashgen {

template <class Mask>
struct BackwardMask;

template <>
struct BackwardMask<FullMask> {
  static constexpr bool kUnevenKeys = false;  // whether blocks of earlier keys take longer

  // The first block of query rows that sees any key of the block.
  template <int kBlockM, int kBlockN>
  __device__ __forceinline__ static int first_m_block(BackwardParams const&, int) { return 0; }
  // Whether any row of the query block sees a key.
  template <int kBlockM>
  __device__ __forceinline__ static bool sees(BackwardParams const&, int) { return true; }
  // The last block of keys that any row of the query block sees, given that it sees one.
  template <int kBlockM, int kBlockN>
  __device__ __forceinline__ static int last_n_block(BackwardParams const& params, int) { return params.n_blocks - 1; }
  // Rows [first_row, Sq) see the key.
  __device__ __forceinline__ static int first_row(BackwardParams const& params, int key) { return key < params.seqlen_k ? 0 : 0x7fffffff; }
  // Whether some row of the query block does not see some key of the key block.
  template <int kBlockM, int kBlockN>
  __device__ __forceinline__ static bool partial(BackwardParams const& params, int, int n_block) { return (n_block + 1) * kBlockN > params.seqlen_k; }
};

template <>
struct BackwardMask<CausalMask> {
  static constexpr bool kUnevenKeys = true;

  template <int kBlockM, int kBlockN>
  __device__ __forceinline__ static int first_m_block(BackwardParams const& params, int n_block) {
    return max(0, n_block * kBlockN - (params.seqlen_k - params.seqlen_q)) / kBlockM;
  }
  template <int kBlockM>
  __device__ __forceinline__ static bool sees(BackwardParams const& params, int m_block) {
    return (m_block + 1) * kBlockM - 1 + params.seqlen_k - params.seqlen_q >= 0;
  }
  template <int kBlockM, int kBlockN>
  __device__ __forceinline__ static int last_n_block(BackwardParams const& params, int m_block) {
    return min(params.n_blocks - 1, ((m_block + 1) * kBlockM - 1 + params.seqlen_k - params.seqlen_q) / kBlockN);
  }
  __device__ __forceinline__ static int first_row(BackwardParams const& params, int key) {
    return key < params.seqlen_k ? key - (params.seqlen_k - params.seqlen_q) : 0x7fffffff;
  }
  template <int kBlockM, int kBlockN>
  __device__ __forceinline__ static bool partial(BackwardParams const& params, int m_block, int n_block) {
    return (n_block + 1) * kBlockN > params.seqlen_k || m_block * kBlockM + params.seqlen_k - params.seqlen_q < (n_block + 1) * kBlockN - 1;
  }
};

}  // namespace flashgen
